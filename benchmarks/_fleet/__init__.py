"""Parts of the benchmark ``fleet``."""
