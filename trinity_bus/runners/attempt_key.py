"""What an attempt is known by."""

from schemas import Cancel, Dispatch

type AttemptKey = tuple[str, int]
"""Task id and attempt."""


def key_of(order: Dispatch | Cancel) -> AttemptKey:
    """Return the attempt that an order is about."""
    return (order.task.task_id if isinstance(order, Dispatch) else order.task_id, order.attempt)
