"""The parts of ``benchmarks/scheduling.py``."""
