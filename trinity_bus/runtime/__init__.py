"""Processes: children that die with their parent, services with clean shutdown, supervision."""
