"""Processes: children that die with their parent, what they say to each other, clean shutdown."""
