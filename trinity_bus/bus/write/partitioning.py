"""Which partition a record belongs to: that of its key, or in a topic in which any will do that of the moment. Pure.

A key's partition is the hash of Kafka's own Java client, as for every client. What comes within a moment goes to
one partition, what comes in the next moment to the next one, as with Kafka's *sticky partitioner* (KIP-480): one batch
where there would be one for each key. Each costs the client a tenth of a millisecond and the broker about as much, and
in a transaction a marker too. Over many moments all partitions get the same.
"""

from functools import lru_cache
from typing import Final

from schemas.topics import ROLLOUTS
from trinity_bus.bus.client.internals import murmur2
from trinity_bus.bus.topics.growth import SETTLE_S


@lru_cache(maxsize=1024)  # the hash is plain Python, and senders use their own name again and again
def partition_of(key: str | bytes, partitions: int) -> int:
    raw = key.encode() if isinstance(key, str) else key
    return int((murmur2(raw) & 0x7FFFFFFF) % partitions)


def lane_partition(explorer: str, partitions: int = ROLLOUTS.partitions) -> int:
    """Return the partition of ``rollouts`` that an explorer chooses for its orders: its lane."""
    # Others may share it; an explorer reads this one alone and passes over orders to others.
    return partition_of(explorer, partitions)


MOMENT_S: Final = 0.005
# after so much the next partition is taken at once: one partition takes one batch at a time
MOMENT_BYTES: Final = 256 << 10


class StickyPartitions:
    """The turn of one topic, seen by one producer. Producers that differ in ``first`` begin at different partitions."""

    def __init__(self, partitions: int, first: int) -> None:
        self._partitions = partitions
        self._current = first % partitions
        self._until = float("-inf")
        self._bytes = 0
        self._grown_at: float | None = None

    def place(self, size: int, now: float, known: int) -> int:
        """Return the partition of a record of ``size`` bytes."""
        # ``known``: how many partitions the topic has by now; more than before are used a while later, when each broker
        # knows of them.
        if known <= self._partitions:
            self._grown_at = None
        elif self._grown_at is None:
            self._grown_at = now
        elif now >= self._grown_at + SETTLE_S:
            self._partitions, self._grown_at = known, None
        if now >= self._until or self._bytes + size > MOMENT_BYTES:
            self._current = (self._current + 1) % self._partitions
            self._until = now + MOMENT_S
            self._bytes = 0
        self._bytes += size
        return self._current
