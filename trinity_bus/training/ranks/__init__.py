"""A trainer of several ranks: rank 0 calls, the others follow. Importing ``followers`` imports no torch."""
