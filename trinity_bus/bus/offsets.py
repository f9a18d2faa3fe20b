"""Where a role's input stands: the offsets that it has committed under its group."""

import asyncio
import time
from collections.abc import Sequence

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from trinity_bus.bus.connection import translated
from trinity_bus.errors import BusError

_POLL_S = 0.1


async def committed(
    admin: AIOKafkaAdminClient, group: str, wanted: Sequence[TopicPartition], timeout_s: float
) -> dict[TopicPartition, int]:
    """The committed offset of each partition that has one.

    On a new cluster the first question creates the topic that groups live in, and is to be asked again. A broker that
    is still loading the group answers with an error that the client library overlooks, and with no partitions at all.
    To take that for "nothing is committed" would be to start anew, so an answer counts only if it has every partition
    that was asked for.

    Raises:
        BusError: The broker refuses, or gives no whole answer in time.
    """
    doing = f"read the committed offsets of {group}"
    until = time.monotonic() + timeout_s
    while True:
        try:
            found = await admin.list_consumer_group_offsets(group, partitions=list(wanted))
        except KafkaError as error:
            if not error.retriable:
                raise translated(error, doing) from error
            found = {}
        if all(position in found for position in wanted):
            return {position: entry.offset for position, entry in found.items() if entry.offset >= 0}
        if time.monotonic() > until:
            raise BusError(f"{doing}: the broker has not loaded the group after {timeout_s:g} s")
        await asyncio.sleep(_POLL_S)
