"""How every consumer of the client library is made and stopped here: no group, committed records only."""

import asyncio

from aiokafka import AIOKafkaConsumer

from trinity_bus.bus.connection import client_options
from trinity_bus.config import KafkaSettings


def make_consumer(
    settings: KafkaSettings, client_id: str, *, partition_bytes: int, fetch_bytes: int, wait_ms: int
) -> AIOKafkaConsumer:
    """A consumer that has not been started.

    Args:
        settings: Where the log is.
        client_id: What brokers call it.
        partition_bytes: Most bytes of one partition in a fetch, except that one record always comes.
        fetch_bytes: Most bytes of a fetch: what it holds in memory.
        wait_ms: How long the broker holds a fetch for which it has nothing.
    """
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
    )


async def stop_consumer(client: AIOKafkaConsumer) -> None:
    """Stop a consumer, also while its broker is away."""
    stopping = asyncio.ensure_future(client.stop())
    await asyncio.wait([stopping])
    if stopping.cancelled():
        # A fetch that was waiting to try again has let its own cancellation out, and the rest was not done.
        await client._client.close()  # noqa: SLF001 - stop() returns at once when called again
        return
    stopping.result()
