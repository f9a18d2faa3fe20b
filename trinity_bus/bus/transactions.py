"""How a transaction of the client library is ended, so that its outcome is always known."""

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.producer import sender
from aiokafka.producer.message_accumulator import MessageBatch

from trinity_bus.bus.connection import kafka_errors
from trinity_bus.errors import BusError

# When a transaction begins, the broker may still write the markers of the one before it, and refuses the new one for
# these few milliseconds. The client would look again after 20 ms, most of what a transaction takes.
sender.BACKOFF_OVERRIDE = 0.003

CANCELLED_S = 5.0
"""How long the end of a transaction is still waited for by someone who is told to stop."""


def fatal_error(client: AIOKafkaProducer) -> BaseException | None:
    """What has made a transactional client unusable for good, such as a fence; ``None`` while it is usable."""
    manager = client._txn_manager  # noqa: SLF001 - the client offers no public way to ask
    return manager.wait_for_transaction_end().exception() if manager.is_fatal_error() else None


def make_fatal(client: AIOKafkaProducer, error: BaseException) -> None:
    """Make a client unusable whose records were given up: nothing of an open transaction may be committed any more."""
    manager = client._txn_manager  # noqa: SLF001 - the client offers no public way
    waiter = manager.wait_for_transaction_end()
    if waiter is not None and not manager.is_fatal_error():
        manager.fatal_error(error)
        # Looked at, whether or not anybody waits for it.
        manager.wait_for_transaction_end().exception()


async def commit(client: AIOKafkaProducer, limit_s: float) -> None:
    """Commit the open transaction.

    Args:
        client: In a transaction.
        limit_s: How long it may take.

    Raises:
        ProducerFencedError: Another producer has taken over.
        BusError: It is not committed, or that is not known in time.
    """
    await _complete(client.commit_transaction(), "commit the transaction", limit_s)


async def abort(client: AIOKafkaProducer, limit_s: float) -> None:
    """Abort the open transaction. With a fenced client there is nothing left to abort.

    Args:
        client: In a transaction.
        limit_s: How long it may take.

    Raises:
        BusError: The broker does not confirm it in time.
    """
    if fatal_error(client) is None:
        await _complete(client.abort_transaction(), "abort the transaction", limit_s)
    else:
        queued = client._message_accumulator._batches.values()  # noqa: SLF001 - likewise
        look_at_errors(batch for batches in queued for batch in batches)


def look_at_errors(batches: Iterable[MessageBatch]) -> None:
    """Else asyncio reports each batch that a client still had at its end, traceback and all, as never looked at."""
    for batch in batches:
        waiter = batch._drain_waiter  # noqa: SLF001 - nothing else knows these futures
        if waiter.done() and not waiter.cancelled():
            waiter.exception()


async def _complete(ending: Coroutine[Any, Any, None], doing: str, limit_s: float) -> None:
    """Run a commit or an abort to its end, if that is near even when this task is cancelled meanwhile."""
    task = asyncio.ensure_future(ending)
    cancelled = False
    deadline = time.monotonic() + limit_s
    while not task.done() and (left := deadline - time.monotonic()) > 0:
        try:
            await asyncio.wait([task], timeout=left)
        except asyncio.CancelledError:
            cancelled = True
            deadline = min(deadline, time.monotonic() + CANCELLED_S)
    if not task.done():
        task.cancel()
        if cancelled:
            raise asyncio.CancelledError
        raise BusError(f"{doing}: no answer in {limit_s:g} s; start this producer anew")
    with kafka_errors(doing):
        task.result()
    if cancelled:
        raise asyncio.CancelledError
