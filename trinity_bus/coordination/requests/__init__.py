"""Requests: what clients ask of the coordinator, and what they are answered."""
