"""How every consumer of the client library is made, asked and stopped here: no group, committed records only.

Fetches wait by themselves for a broker that is away. Questions for offsets are asked again until ``kafka.outage_s``
have passed; one for a topic that does not exist is answered at once.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Literal

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaTimeoutError

from trinity_bus import awake
from trinity_bus.bus.client.connection import HOW_TOPICS_COME, client_options
from trinity_bus.bus.client.internals import client_of, written_ends
from trinity_bus.bus.client.shutdown import bounded_shutdown, to_the_end
from trinity_bus.bus.read import batches
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BrokerUnreachableError, UnknownTopicError

CREATION_S = 2.0  # how long a topic that was just created may be unknown to some of the brokers
_POLL_S = 0.05

# the first offset that is kept, the end of committed records, the end of all records
type LogPlace = Literal["beginning", "end", "written end"]

batches.install()


def make_consumer(
    settings: KafkaSettings, client_id: str, *, partition_bytes: int, fetch_bytes: int, wait_ms: int, least_bytes: int
) -> AIOKafkaConsumer:
    """Return a consumer that has not been started."""
    # A fetch brings at most ``fetch_bytes``, which it holds in memory, and ``partition_bytes`` of one partition, except
    # that one record always comes. The broker holds one for which it has less than ``least_bytes`` for ``wait_ms``.
    return AIOKafkaConsumer(
        **client_options(settings, client_id),
        group_id=None,
        enable_auto_commit=False,
        # A position that is gone is told, never replaced by another.
        auto_offset_reset="none",
        isolation_level="read_committed",
        max_partition_fetch_bytes=partition_bytes,
        fetch_max_bytes=fetch_bytes,
        fetch_max_wait_ms=wait_ms,
        fetch_min_bytes=least_bytes,
    )


async def stop_consumer(client: AIOKafkaConsumer) -> None:
    async with bounded_shutdown(client_of(client)):
        await to_the_end(_stop(client))


async def _stop(client: AIOKafkaConsumer) -> None:
    stopping = asyncio.ensure_future(client.stop())
    await asyncio.wait([stopping])
    if stopping.cancelled():
        # A fetch that was waiting to try again has let its own cancellation out, and the rest was not done; stop()
        # returns at once when called again.
        await client_of(client).close()
    else:
        stopping.result()


async def log_offsets(
    client: AIOKafkaConsumer, settings: KafkaSettings, which: LogPlace, asked: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the first offset that is kept of each partition, or the end of its committed or of all records."""
    ask = {
        "beginning": client.beginning_offsets,
        "end": client.end_offsets,
        "written end": partial(written_ends, client),
    }[which]
    until = awake.now() + settings.outage_s
    while True:
        # Each time: of one that is deleted meanwhile, the client would ask for the leader until its time is up.
        await _check_existence(client, {position.topic for position in asked})
        try:
            return dict(await ask(list(asked)))
        except KafkaTimeoutError as error:
            # As long as it waits for an answer of one that is lost, it does not learn who leads now.
            client_of(client).break_off()
            client_of(client).check_credentials()
            if awake.now() > until:
                raise BrokerUnreachableError(
                    f"no broker has told the {which} of the log in {settings.outage_s:g} s; is it running?"
                ) from error


async def _check_existence(client: AIOKafkaConsumer, topics: set[str]) -> None:
    # The client itself would ask for an absent topic's leader until its time is up.
    library, until = client_of(client), awake.now() + CREATION_S
    while unknown := {topic for topic in topics if client.partitions_for_topic(topic) is None}:
        if awake.now() > until:
            library.forget(unknown)
            names = ", ".join(sorted(unknown))
            raise UnknownTopicError(f"there is no topic {names}: {HOW_TOPICS_COME}")
        if not await library.learn(unknown):
            raise KafkaConnectionError("no broker tells which topics there are")
        if unknown - library.cluster.topics():
            await asyncio.sleep(_POLL_S)
