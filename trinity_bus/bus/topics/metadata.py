"""What a producer must know of a topic before it can queue a record for it: its partitions.

::

    KNOWN, at once where it was sent to before
       '------but not the one that is meant---------> asked again: it was added lately; or SendError
    UNKNOWN --a broker names its partitions------------------> KNOWN
       |------a broker answers, and has no such topic--------> BusError, after kafka.request_timeout_s
       |------no broker answers for kafka.outage_s-----------> BrokerUnreachableError
       |------they refuse its credentials--------------------> CredentialsRefusedError (``credentials``)
       '------the user may not see it------------------------> AccessDeniedError

The client library gives up as soon on brokers that are away as on those that do not have the topic; here only the
latter counts as an answer, because a broker that is away is waited for like everywhere else.
"""

import asyncio
import contextlib
import logging

from aiokafka import AIOKafkaProducer
from aiokafka.errors import UnknownTopicOrPartitionError

from trinity_bus import awake
from trinity_bus.bus.client.connection import HOW_TOPICS_COME, kafka_errors
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BrokerUnreachableError, BusError, SendError

log = logging.getLogger(__name__)

_AGAIN_S = 0.1


async def partitions_known(client: AIOKafkaProducer, name: str, settings: KafkaSettings, partition: int) -> None:
    """Return when the client knows the partitions of a topic (full name), the one that is meant among them."""
    known = client.client.cluster.partitions_for_topic(name)
    if known is None:
        await _topic_known(client, name, settings)
        known = client.client.cluster.partitions_for_topic(name)
    if partition not in (known or ()):
        await _partition_known(client, name, settings, partition)


async def _partition_known(client: AIOKafkaProducer, name: str, settings: KafkaSettings, partition: int) -> None:
    # Not each broker knows at once of a partition that was added lately.
    until = awake.now() + settings.request_timeout_s
    while True:
        with kafka_errors(f"send to {name}"):
            await client.client.force_metadata_update()
        known = client.client.cluster.partitions_for_topic(name) or ()
        if partition in known:
            return
        if awake.now() > until:
            raise SendError(f"send to {name}: it has {len(known)} partitions, there is no {partition}")
        await asyncio.sleep(_AGAIN_S)


async def _topic_known(client: AIOKafkaProducer, name: str, settings: KafkaSettings) -> None:
    began = awake.now()
    while not await _ask(client, name, settings.request_timeout_s):
        with kafka_errors(f"send to {name}"):
            client.client.check_credentials()
        waited_s = awake.now() - began
        if waited_s >= settings.outage_s:
            raise BrokerUnreachableError(
                f"send to {name}: no broker has answered for {waited_s:.0f} s (TRINITY_BUS_KAFKA__OUTAGE_S)"
            )
        log.warning("send to %s: no broker has answered for %.0f s; is it running?", name, waited_s)


async def _ask(client: AIOKafkaProducer, name: str, limit_s: float) -> bool:
    # Whether anybody answered within the client's limit, or this one.
    # A client that is closed meanwhile never comes back by itself.
    with kafka_errors(f"send to {name}"), contextlib.suppress(TimeoutError):
        async with awake.timeout(2 * limit_s):
            try:
                await client.partitions_for(name)
            except UnknownTopicOrPartitionError as error:
                if await client.client.force_metadata_update():
                    raise BusError(f"send to {name}: there is no such topic: {HOW_TOPICS_COME}") from error
            else:
                return True
    return False
