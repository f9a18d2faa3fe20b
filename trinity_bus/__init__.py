"""The library: pure decisions, the bus that feeds them, and the engines that do the work."""
