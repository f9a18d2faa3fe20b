"""Bench: evaluates every checkpoint of a run on the same task sets."""
