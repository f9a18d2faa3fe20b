"""Bench: every checkpoint of a run answers the same evaluations."""
