"""State: the part that survives a restart, kept as entries of a changelog."""
