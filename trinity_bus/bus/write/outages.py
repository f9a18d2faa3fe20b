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
    queued_batches,
    transaction_of,
    waits_for,
)
from trinity_bus.bus.client.shutdown import bounded_shutdown
from trinity_bus.errors import BusError

CANCELLED_S = 5.0  # how long the end of a transaction is still waited for by someone who is told to stop


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


_WAITING: dict[str, str] = {}  # producers of this process that wait for long, and why they cannot write


def what_waits() -> str | None:
    """Return why this process cannot write, in one line; None where it can."""
    return next(iter(_WAITING.values()), None)


async def limit_outages(client: AIOKafkaProducer, client_id: str, outage_s: float) -> None:
    """Tell what waits for long, and give up once the same has waited for too long."""
    # Counted in looks, not by a clock: a process that was stopped has not waited.
    waited_s, last = 0.0, None
    name, key = f"producer {client_id}", f"{client_id} {id(client)}"
    try:
        while waited_s < outage_s:
            await asyncio.sleep(_WATCH_S)
            thing = waits_for(client)
            if thing is not None:
                client.client.check_credentials()
            before_s = waited_s
            waited_s = waited_s + _WATCH_S if thing is not None and thing is last else 0.0
            last = thing
            if waited_s >= TOLD_S:
                why = (
                    f"{name}: a record has waited for {waited_s:.0f} s; do as many brokers run as must have it "
                    "(min.insync.replicas)?"
                )
                if key not in _WAITING:
                    log.warning("%s It waits for up to %g s", why, outage_s)
                _WAITING[key] = why
            elif _WAITING.pop(key, None) is not None:
                log.warning("%s: what waited is durable, after %.0f s", name, before_s)
    except AuthenticationFailedError as error:
        log.error("%s: %s", name, error)  # noqa: TRY400 - one line
        await give_up(client, error)
        return
    finally:
        _WAITING.pop(key, None)
    log.error("%s: a record is not durable after %g s; it gives up", name, outage_s)
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
