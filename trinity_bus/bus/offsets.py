"""Where a role's input stands: the offsets that it has committed under its group, and what is still there of it."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from schemas.topics import Topic
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


class HasBeginnings(Protocol):
    """A bus."""

    async def beginning_offsets(self, topic: Topic) -> dict[int, int]:
        """Partition to the first offset that retention has kept."""
        ...


class HasOffsets(HasBeginnings, Protocol):
    """A bus."""

    async def end_offsets(self, topic: Topic) -> dict[int, int]:
        """Partition to the offset that the next committed record will have at least."""
        ...


async def recent(bus: HasOffsets, topics: Iterable[Topic], count: int) -> dict[tuple[str, int], int]:
    """Where the newest ``count`` records of each partition of these topics begin."""
    start = {}
    for topic in topics:
        first = await bus.beginning_offsets(topic)
        for partition, end in (await bus.end_offsets(topic)).items():
            start[topic.name, partition] = max(first[partition], end - count)
    return start


async def readable(
    bus: HasBeginnings, topics: Iterable[Topic], positions: Mapping[tuple[str, int], int]
) -> tuple[dict[tuple[str, int], int], int]:
    """Positions from which can be read: moved past what retention has deleted.

    Args:
        bus: Connected.
        topics: Whose positions to look at.
        positions: ``(topic name, partition)`` to the offset to read next.

    Returns:
        All positions, and how many records were lost.
    """
    lost = 0
    moved = dict(positions)
    for topic in topics:
        for partition, first in (await bus.beginning_offsets(topic)).items():
            wanted = positions.get((topic.name, partition))
            if wanted is not None and wanted < first:
                lost += first - wanted
                moved[topic.name, partition] = first
    return moved, lost
