"""Versions: which weights the mesh serves, and who takes part in moving them."""
