"""Parts of the benchmark ``soak``."""
