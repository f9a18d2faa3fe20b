"""Errors of the trainer service."""

from trinity_bus.errors import TrinityError


class BatchError(TrinityError):
    """A batch cannot be trained on as its manifest says. The trainer stops: to skip it is for an operator to say."""


class LineageEndedError(TrinityError):
    """An operator has ended the lineage of this incarnation: a new one begins, from an older version."""


def way_out(batch_id: str) -> str:
    """Return what an operator can do about a batch that cannot be trained on, as the end of a message."""
    return f"`trinity-bus batches skip {batch_id} --reason ...` has the trainer pass over it"
