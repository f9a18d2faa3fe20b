"""Dispatch: which part of a task goes to which explorer, when, and for how long."""
