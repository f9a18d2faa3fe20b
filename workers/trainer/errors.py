"""Errors of the trainer service."""

from trinity_bus.errors import TrinityError


class BatchError(TrinityError):
    """A batch cannot be trained on as its manifest says. The trainer stops: to skip it would be to train on less."""
