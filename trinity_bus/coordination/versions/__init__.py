"""Versions: which version the mesh serves, and the members of each weight sync."""
