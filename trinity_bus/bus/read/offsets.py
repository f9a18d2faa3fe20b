"""Where a reader stands: the offsets that a role has committed, what is still there, and what is kept from it.

``Stalls`` reports what keeps records from a reader though the brokers have them, since nothing else would say so:

===================================  =================================================================================
somebody's transaction stays open    readers of committed records wait behind it, in that partition, until the brokers
                                     end it (``transaction.max.timeout.ms``, 15 minutes unless it is set)
a topic has more partitions          senders spread over all of them, and nobody reads those that a topic should not
                                     have, unless it can grow (``partitioning``): Kafka takes none away
===================================  =================================================================================
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from schemas.topic import Topic
from trinity_bus import awake
from trinity_bus.bus.client.connection import translated
from trinity_bus.errors import BusError

_POLL_S = 0.1


async def committed(
    admin: AIOKafkaAdminClient, group: str, wanted: Sequence[TopicPartition], timeout_s: float
) -> dict[TopicPartition, int]:
    """Return the committed offset of each partition that has one.

    On a new cluster the first question creates the topic that groups live in, and is to be asked again. A broker that
    is still loading the group answers with an error that the client library overlooks, and with no partitions at all.
    To take that for "nothing is committed" would be to start anew, so an answer counts only if it has every partition
    that was asked for.
    """
    doing = f"read the committed offsets of {group}"
    until = awake.now() + timeout_s
    while True:
        try:
            found = await admin.list_consumer_group_offsets(group, partitions=list(wanted))
        except KafkaError as error:
            if not error.retriable:
                raise translated(error, doing) from error
            found = {}
        if all(position in found for position in wanted):
            return {position: entry.offset for position, entry in found.items() if entry.offset >= 0}
        if awake.now() > until:
            raise BusError(f"{doing}: the broker has not loaded the group after {timeout_s:g} s")
        await asyncio.sleep(_POLL_S)


class HasEnds(Protocol):
    async def beginning_offsets(self, topic: Topic) -> dict[int, int]: ...

    async def end_offsets(self, topic: Topic) -> dict[int, int]: ...


@dataclass(frozen=True, slots=True)
class BeyondEnd:
    """A position that the log does not reach: records were lost after they were read, or the topic was made anew.

    What lies before the end may have been read or not; nobody can tell.
    """

    topic: str
    partition: int
    position: int
    begin: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} ends at {self.end}, and {self.position} was to be read next"


@dataclass(frozen=True, slots=True)
class Readable:
    # Positions from which can be read.
    # all that were asked for: past what retention has deleted, and back to the end where they lay beyond it
    positions: dict[tuple[str, int], int]
    lost: int  # records that retention has deleted before they were read
    beyond: list[BeyondEnd]


async def recent(bus: HasEnds, topics: Iterable[Topic], count: int) -> dict[tuple[str, int], int]:
    """Where the newest ``count`` records of each partition of these topics begin."""
    start = {}
    for topic in topics:
        first = await bus.beginning_offsets(topic)
        for partition, end in (await bus.end_offsets(topic)).items():
            start[topic.name, partition] = max(first[partition], end - count)
    return start


async def readable(bus: HasEnds, topics: Iterable[Topic], positions: Mapping[tuple[str, int], int]) -> Readable:
    """Positions from which can be read, and what is wrong with the others."""
    lost = 0
    moved = dict(positions)
    beyond = []
    for topic in topics:
        begins, ends = await bus.beginning_offsets(topic), await bus.end_offsets(topic)
        for partition, first in begins.items():
            wanted, end = positions.get((topic.name, partition)), ends[partition]
            if wanted is None:
                continue
            if wanted < first:
                lost += first - wanted
            if wanted > end:
                beyond.append(BeyondEnd(topic.name, partition, wanted, first, end))
            moved[topic.name, partition] = min(max(wanted, first), max(first, end))
    return Readable(moved, lost, beyond)


HELD_S: Final = 5.0  # transactions of the mesh's own services end long before


@dataclass(frozen=True, slots=True)
class Standing:
    # Where a reader is in one partition, as the last fetch has told.
    topic: str
    partition: int
    position: int
    stable_end: int | None  # of what no open transaction holds back; None where no broker has told yet
    end: int | None


class Stalls:
    """What is known of one reader. Told the time, in seconds of any steady clock."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], tuple[int, float]] = {}  # by partition: where it is held, and since when
        # whether there is a transaction of which the last look could not tell yet whether it stays open
        self.doubtful = False
        self._said: set[str] = set()
        self._news: list[str] = []

    def look(self, now: float, standings: Iterable[Standing], partitions: Iterable[tuple[str, int, int]]) -> list[str]:
        """Return what is kept from the reader, a line each."""
        # ``partitions``: of each topic its name, how many it has, and how many it should have.
        lines = [
            f"{one.topic}/{one.partition}: records from {one.stable_end} on wait for a transaction that somebody has "
            "left open; the brokers end it after its time-out, transaction.max.timeout.ms at most"
            for one in standings
            if self._is_held(now, one)
        ]
        self.doubtful = len(lines) < len(self._held)
        lines += [
            f"{topic} has {has} partitions and needs exactly {wanted}: nobody reads what is in the others; make the "
            "topic anew, and send again what they hold"
            for topic, has, wanted in partitions
            if has > wanted
        ]
        self._news += [line for line in lines if line not in self._said]
        self._said.update(lines)
        return lines

    def news(self) -> list[str]:
        """Return what has not been told yet, a line each."""
        lines, self._news = self._news, []
        return lines

    def _is_held(self, now: float, one: Standing) -> bool:
        place, stable, end = (one.topic, one.partition), one.stable_end, one.end
        if stable is None or end is None or stable >= end or one.position < stable:
            self._held.pop(place, None)
            return False
        at, since = self._held.get(place, (stable, now))
        if at != stable:
            since = now
        self._held[place] = (stable, since)
        return now - since >= HELD_S
