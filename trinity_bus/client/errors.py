"""What a coordinator's refusal is to a caller: the errors, with the texts that callers of the reference know."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from schemas import CommandReply
from schemas.record import BatchType
from trinity_bus import awake
from trinity_bus.client.ids import BatchId
from trinity_bus.errors import NotOwnerError, RefusedError, TimedOutError, UnknownBatchError

NO_RESULT: Final = "the coordinator's reply has no result; are both of one version?"


def check_reply(reply: CommandReply, batch_id: BatchId, expected: BatchType | None = None) -> None:
    """Raise what a reply says, if that is an error.

    ``expected``: the type that the command took the batch to have, where it was to finalize it.
    """
    if reply.error is None:
        return
    if reply.error == "unknown_batch":
        raise UnknownBatchError(f"Batch {batch_id} is not registered.")
    if reply.error == "batch_closed" and expected is not None:
        raise UnknownBatchError(reply.detail)
    if reply.error == "timeout":
        raise TimedOutError(f"Timeout waiting for batch {batch_id}.")
    if reply.error == "not_yours":
        raise NotOwnerError(reply.detail)
    if reply.error == "already_active":
        raise RefusedError(f"Batch {batch_id} is already active.")
    if reply.error == "wrong_type" and expected is not None:
        actual = "eval" if expected == "train" else "train"
        raise RefusedError(f"Batch {batch_id} is {actual}, expected {expected}.")
    raise RefusedError(reply.detail or f"Batch {batch_id}: {reply.error}.")


@asynccontextmanager
async def within(seconds: float, why: str) -> AsyncIterator[None]:
    """Give what is done inside so many seconds; TimedOutError, which says why that matters, when they are over."""
    limit = awake.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimedOutError(f"{why} within {seconds:g} s") from None
