"""How a transaction of the client library is ended, so that its outcome is always known."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from aiokafka import AIOKafkaProducer

from trinity_bus import awake
from trinity_bus.bus.client.connection import kafka_errors
from trinity_bus.bus.client.internals import (
    TransactionState,
    look_at_errors,
    pending_offsets,
    queued_batches,
    transaction_of,
    unsent_batches,
)
from trinity_bus.errors import BusError

CANCELLED_S = 5.0  # how long the end of a transaction is still waited for by someone who is told to stop


def still_to_do(client: AIOKafkaProducer) -> str:
    """Return what the client has not done yet, in the order in which it does it."""
    # Several answers of a broker ("still loading", "the transaction before is not complete") have the client library
    # try again for ever, without a word.
    manager = transaction_of(client)
    steps = (
        ("partitions to be added to a transaction", len(manager.partitions_to_add())),
        ("batches to be written", len(unsent_batches(client))),
        ("offsets of groups to be committed", pending_offsets(manager)),
        ("the end of a transaction to be confirmed", int(manager.needs_transaction_commit() is not None)),
    )
    return ", ".join(f"{what} ({count})" for what, count in steps if count) or "nothing left to be done"


def fatal_error(client: AIOKafkaProducer) -> BaseException | None:
    """Return what has made a transactional client unusable for good, such as a fence; None while it is usable."""
    manager = transaction_of(client)
    return manager.wait_for_transaction_end().exception() if manager.is_fatal_error() else None


def check_committable(client: AIOKafkaProducer) -> None:
    """Raise BusError where the open transaction has failed, while it can still be aborted."""
    waiter = transaction_of(client).wait_for_transaction_end()
    if waiter.done():
        with kafka_errors("commit the transaction"):
            waiter.result()


def is_ended(client: AIOKafkaProducer) -> bool:
    # Whether the broker has said how the last transaction has ended.
    return transaction_of(client).state is TransactionState.READY


def make_fatal(client: AIOKafkaProducer, error: BaseException) -> None:
    """Make a client unusable whose records were given up: nothing of an open transaction may be committed any more."""
    manager = transaction_of(client)
    if manager.wait_for_transaction_end() is None:
        return
    if not manager.is_fatal_error():
        manager.fatal_error(error)
    # Looked at, whether or not anybody waits for it.
    manager.wait_for_transaction_end().exception()


async def commit(client: AIOKafkaProducer, limit_s: float) -> None:
    """Commit the open transaction. Raises ProducerFencedError, or BusError: whether it is committed is not known."""
    await _complete(client.commit_transaction(), "commit the transaction", limit_s)


async def abort(client: AIOKafkaProducer, limit_s: float) -> None:
    """Abort the open transaction. With a fenced client there is nothing left to abort. Raises BusError."""
    if fatal_error(client) is None:
        await _complete(client.abort_transaction(), "abort the transaction", limit_s)
    else:
        look_at_errors(queued_batches(client))


async def _complete(ending: Coroutine[Any, Any, None], doing: str, limit_s: float) -> None:
    # Run to its end, if that is near even when this task is cancelled meanwhile.
    task = asyncio.ensure_future(ending)
    cancelled = False
    deadline = awake.now() + limit_s
    while not task.done() and (left := deadline - awake.now()) > 0:
        try:
            await awake.wait([task], left)
        except asyncio.CancelledError:
            cancelled = True
            deadline = min(deadline, awake.now() + CANCELLED_S)
    if not task.done():
        task.cancel()
        if cancelled:
            raise asyncio.CancelledError
        raise BusError(f"{doing}: no answer in {limit_s:g} s; start this producer anew")
    with kafka_errors(doing):
        task.result()
    if cancelled:
        raise asyncio.CancelledError
