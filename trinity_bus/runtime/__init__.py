"""Processes: children that die with their parent, messages between them, clean shutdown."""
