"""What goes wrong with the index: each one line for people."""

from schemas.errors import TrinityError


class QuestionError(TrinityError, ValueError):
    """The index cannot be asked this."""


class StoreBusyError(TrinityError, RuntimeError):
    """Another process writes the store."""


class StoreError(TrinityError, RuntimeError):
    """The store cannot be read or written: the disk is full, or its files are damaged."""


class UnreadableError(TrinityError, ValueError):
    """What lies at a place of the log is not what it is taken for."""
