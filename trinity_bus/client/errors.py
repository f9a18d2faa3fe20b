"""What a coordinator's refusal is to a caller: the exceptions, with their texts, that callers of the reference know."""

from typing import NoReturn

from schemas import CommandReply
from schemas.record import BatchType
from trinity_bus.client.ids import BatchId
from trinity_bus.errors import TrinityError


class NoCoordinatorError(TrinityError):
    """No coordinator answers."""


def raise_refusal(reply: CommandReply, batch_id: BatchId, expected: BatchType | None = None) -> NoReturn:
    """Raise what a reply with an error says.

    Args:
        reply: Its ``error`` is set.
        batch_id: As the caller gave it.
        expected: The type that the command took the batch to have, where it was to finalize it.

    Raises:
        KeyError: A batch that is to be finalized is not known, or not any more.
        TimeoutError: Time was up.
        PermissionError: The batch is another producer's.
        ValueError: Anything else.
    """
    if reply.error == "unknown_batch":
        raise KeyError(f"Batch {batch_id} is not registered.")
    if reply.error == "batch_closed" and expected is not None:
        raise KeyError(reply.detail)
    if reply.error == "timeout":
        raise TimeoutError(f"Timeout waiting for batch {batch_id}.")
    if reply.error == "not_yours":
        raise PermissionError(reply.detail)
    if reply.error == "already_active":
        raise ValueError(f"Batch {batch_id} is already active.")
    if reply.error == "wrong_type" and expected is not None:
        actual = "eval" if expected == "train" else "train"
        raise ValueError(f"Batch {batch_id} is {actual}, expected {expected}.")
    raise ValueError(reply.detail or f"Batch {batch_id}: {reply.error}.")
