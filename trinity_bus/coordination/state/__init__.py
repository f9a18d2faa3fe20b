"""State: what outlives a restart, kept as entries of a changelog."""
