"""How long a producer waits for brokers that are away, and how it gives up: an idempotent client tries for ever."""

import asyncio
import logging

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError

from trinity_bus.bus.internals import close_sender, fail_all, oldest_of, unsent_batches
from trinity_bus.bus.shutdown import bounded_shutdown
from trinity_bus.bus.transactions import make_fatal

log = logging.getLogger(__name__)

LEAVE_S = 2.0
"""How long a transactional producer may take to disconnect: nothing is pending that counts."""
_WATCH_S = 1.0
"""How often it is looked at what waits to be durable."""


async def limit_outages(client: AIOKafkaProducer, client_id: str, outage_s: float) -> None:
    """Give up once the same batch has waited for too long.

    Counted in rounds, not by a clock: a process that was stopped has not waited.
    """
    rounds, oldest = 0, None
    while rounds * _WATCH_S < outage_s:
        await asyncio.sleep(_WATCH_S)
        before, oldest = oldest, oldest_of(unsent_batches(client))
        rounds = rounds + 1 if oldest is not None and oldest is before else 0
    log.error("producer %s: a record is not durable after %g s; it gives up", client_id, outage_s)
    await give_up(client, KafkaConnectionError(f"not durable after {outage_s:g} s (TRINITY_BUS_KAFKA__OUTAGE_S)"))


async def give_up(client: AIOKafkaProducer, error: KafkaError) -> None:
    """Fail what is not durable and disconnect."""
    try:
        # The client cannot be stopped while it looks for its coordinator, unless it is told twice.
        async with asyncio.timeout(LEAVE_S):
            await close_sender(client)
    except TimeoutError:
        log.debug("a producer was looking for its coordinator")
    fail_all(client, error)
    make_fatal(client, error)
    async with bounded_shutdown(client.client):
        await client.client.close()
