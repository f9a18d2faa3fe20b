"""Which partition a key belongs to: the hash of Kafka's own Java client, so that every client agrees."""

from functools import lru_cache

from schemas.topics import ROLLOUTS
from trinity_bus.bus.internals import murmur2


@lru_cache(maxsize=1024)  # the hash is plain Python, and senders use their own name again and again
def partition_of(key: str | bytes, partitions: int) -> int:
    raw = key.encode() if isinstance(key, str) else key
    return int((murmur2(raw) & 0x7FFFFFFF) % partitions)


def lane_partition(explorer: str, partitions: int = ROLLOUTS.partitions) -> int:
    """Return the partition of ``rollouts`` that an explorer chooses for its orders: its lane.

    Others may share it; an explorer reads this one alone and passes over orders to others.
    """
    return partition_of(explorer, partitions)
