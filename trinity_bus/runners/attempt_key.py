"""What an attempt is known by."""

from schemas import Cancel, Dispatch

type AttemptKey = tuple[str, int]  # task id and attempt


def key_of(order: Dispatch | Cancel) -> AttemptKey:
    return (order.task.task_id if isinstance(order, Dispatch) else order.task_id, order.attempt)
