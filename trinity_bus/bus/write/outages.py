"""How long a producer waits for brokers, and how it gives up: an idempotent client tries for ever.

It waits for brokers that are away, and as well for the second of three: a record counts once as many have it as its
topic's ``min.insync.replicas`` says::

    WRITING --the same batch or commit for TOLD_S--> WAITING: one line in the log, and the process is not ready
       ^                                                |--------kafka.outage_s--> GIVEN UP, one line
       |                                                |--credentials refused--> GIVEN UP, one line (``credentials``)
       '---it is durable: one line----------------------'

A transaction of the client library is ended so that its outcome is always known.
"""

import asyncio
import logging
import weakref
from collections.abc import Coroutine
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import AuthenticationFailedError, KafkaConnectionError, KafkaError

from trinity_bus import awake
from trinity_bus.bus.client.connection import kafka_errors
from trinity_bus.bus.client.internals import (
    TransactionState,
    close_sender,
    fail_all,
    look_at_errors,
    pending_offsets,
    queued_batches,
    transaction_of,
    unsent_batches,
    waits_for,
)
from trinity_bus.bus.client.shutdown import bounded_shutdown
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


log = logging.getLogger(__name__)

LEAVE_S = 2.0  # how long a transactional producer may take to disconnect: nothing is pending that counts
CLOSE_S = 30.0  # how long another one may take, or as long as brokers may be away: what was sent is to become durable
TOLD_S = 10.0  # what takes so long is no hiccup any more
_WATCH_S = 1.0  # how often it is looked at what waits to be durable


class WriteWait:
    """How long one producer has waited by now. Pure; told every ``_WATCH_S`` what it waits for.

    Counted in looks, not by a clock: a process that was stopped has not waited.
    """

    def __init__(self, who: str, outage_s: float) -> None:
        self._who = who
        self._outage_s = outage_s
        self._looks = 0
        self._last: object | None = None
        self._left = ""

    @property
    def seconds(self) -> float:
        return self._looks * _WATCH_S

    @property
    def reason(self) -> str | None:
        # Why this process cannot work; None as long as that may be a hiccup.
        if self.seconds < TOLD_S:
            return None
        return (
            f"producer {self._who}: a record has waited for {self.seconds:.0f} s ({self._left}); do as many brokers "
            "run as must have it (min.insync.replicas)?"
        )

    @property
    def is_over(self) -> bool:
        return self.seconds >= self._outage_s

    def look(self, thing: object | None, left: str) -> str | None:
        """Note what it waits for now, if anything; return a line for the log, where something is to be told."""
        # ``left``: what is still to be done, in words.
        before, self._last, self._left = self._last, thing, left
        waited_s, told = self.seconds, self.reason is not None
        self._looks = self._looks + 1 if thing is not None and thing is before else 0
        if self.reason is not None and not told:
            return f"{self.reason} It waits for up to {self._outage_s:g} s"
        if told and self.reason is None:
            return f"producer {self._who}: what waited is durable, after {waited_s:.0f} s"
        return None


_WAITS: weakref.WeakSet[WriteWait] = weakref.WeakSet()  # of the producers of this process


def what_waits() -> str | None:
    """Return why this process cannot write, in one line; None where it can."""
    return next((reason for wait in list(_WAITS) if (reason := wait.reason) is not None), None)


async def limit_outages(client: AIOKafkaProducer, client_id: str, outage_s: float) -> None:
    # Tell what waits for long, and give up once the same has waited for too long.
    wait = WriteWait(client_id, outage_s)
    _WAITS.add(wait)
    try:
        while not wait.is_over:
            await asyncio.sleep(_WATCH_S)
            waited_for = waits_for(client)
            if waited_for is not None:
                client.client.check_credentials()
            if (line := wait.look(waited_for, still_to_do(client))) is not None:
                log.warning("%s", line)
    except AuthenticationFailedError as error:
        log.error("producer %s: %s", client_id, error)  # noqa: TRY400 - one line
        await give_up(client, error)
        return
    finally:
        _WAITS.discard(wait)
    log.error("producer %s: a record is not durable after %g s; it gives up", client_id, outage_s)
    await give_up(client, KafkaConnectionError(f"not durable after {outage_s:g} s (TRINITY_BUS_KAFKA__OUTAGE_S)"))


async def give_up(client: AIOKafkaProducer, error: KafkaError) -> None:
    # Fail what is not durable and disconnect.
    try:
        # The client cannot be stopped while it looks for its coordinator, unless it is told twice.
        async with awake.timeout(LEAVE_S):
            await close_sender(client)
    except TimeoutError:
        log.debug("a producer was looking for its coordinator")
    except Exception as fault:  # noqa: BLE001 - whatever ends the task that sends, it has ended
        log.debug("the task that sends has ended with %r", fault)
    finally:
        fail_all(client, error)
        make_fatal(client, error)
        async with bounded_shutdown(client.client):
            await client.client.close()
