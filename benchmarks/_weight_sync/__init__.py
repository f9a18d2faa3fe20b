"""The parts of the benchmark of weight sync."""
