"""Handlers: the effect of each kind of input on the machine's state."""
