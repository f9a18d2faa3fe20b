"""The client library's producer, as every producer here is set up and started."""

from aiokafka import AIOKafkaProducer

from schemas.topics import TOPICS
from trinity_bus import awake
from trinity_bus.bus.client.connection import client_options, kafka_errors
from trinity_bus.bus.client.internals import keep_batches_for
from trinity_bus.bus.client.shutdown import bounded_shutdown, to_the_end
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BrokerUnreachableError

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
