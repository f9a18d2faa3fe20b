"""The services of the mesh: thin shells around ``trinity_bus``."""
