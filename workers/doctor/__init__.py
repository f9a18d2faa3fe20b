"""What of a machine would keep a mesh from working, and what to do about it."""
