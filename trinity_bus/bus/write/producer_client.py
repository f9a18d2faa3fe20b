"""The client library's producer, as every producer here is set up and started.

A producer must know the partitions of a topic before it can queue a record for it.

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

from schemas.topics import TOPICS
from trinity_bus import awake
from trinity_bus.bus.client.connection import HOW_TOPICS_COME, client_options, kafka_errors
from trinity_bus.bus.client.internals import keep_batches_for
from trinity_bus.bus.client.shutdown import bounded_shutdown, to_the_end
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BrokerUnreachableError, BusError, SendError

# records of one partition are collected up to this size; below every topic's limit, which is on whole batches
MAX_BATCH_BYTES = 768 << 10
LINGER_MS = 2
MAX_TRANSACTION_S = 900.0  # brokers grant no transaction more, unless they are told to


async def started_client(settings: KafkaSettings, client_id: str, transactional_id: str | None) -> AIOKafkaProducer:
    """Connect. Raises BusError."""
    client = AIOKafkaProducer(
        **client_options(settings, client_id),
        enable_idempotence=True,
        acks="all",
        max_batch_size=MAX_BATCH_BYTES,
        max_request_size=max(topic.max_message_bytes for topic in TOPICS),
        # A commit closes open batches only after they have lingered.
        linger_ms=LINGER_MS if transactional_id is None else 0,
        compression_type=None if settings.compression == "none" else settings.compression,
        transactional_id=transactional_id,
        # The broker aborts a transaction that is open for longer: its writer has died.
        **(
            {}
            if transactional_id is None
            else {"transaction_timeout_ms": round(1000 * min(settings.outage_s, MAX_TRANSACTION_S))}
        ),
    )
    keep_batches_for(client, settings.outage_s)
    doing = f"start producer {transactional_id or client_id}"
    try:
        # The client would ask for a transaction coordinator and for a producer id forever. A broker that makes its
        # first log of transactions, or loads it, has neither for a while.
        async with awake.timeout(settings.outage_s):
            with kafka_errors(doing):
                await client.start()
    except BaseException as error:
        async with bounded_shutdown(client.client):
            await to_the_end(client.stop())
        if isinstance(error, TimeoutError):
            raise BrokerUnreachableError(
                f"{doing}: no producer id in {settings.outage_s:g} s (TRINITY_BUS_KAFKA__OUTAGE_S)"
            ) from None
        raise
    return client


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
