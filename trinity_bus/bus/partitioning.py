"""The partitions of topics: which one a record belongs to, and how a topic that is in use gets more of them.

A key's records lie in one partition, in their order, because its number follows from the key and from how many
partitions there are. With more of them, a key's next records would lie in another one than its last, and nobody could
tell which came first. So only a topic grows whose records may lie in any partition (``Topic.any_partition``), or whose
readers read one each and say which (``Topic.lanes``): an explorer chooses its lane when it starts, among those that
there are then, tells it in its heartbeats, and keeps it to its end. None shrinks: Kafka takes no partition away.

::

    trinity-bus topics grow --> brokers
                                   +--metadata, each METADATA_S--> producers: spread over all of them, SETTLE_S later
                                   +--metadata, each METADATA_S--> readers: read the new ones from their beginning
                                   +--asked each time------------> who fetches by position, or asks for ends
                                   +--asked when it starts-------> explorer: its lane may be one of the new ones
                                   +--asked when it is told------> coordinator: of a lane that it does not know

Nothing is lost meanwhile, nor read twice: a reader that learns later than a producer finds all of it there. Failures:
one that never reads again has not read it. Pure, but for ``grow``.

A record belongs to the partition of its key, or of the moment in a topic in which any will do. A key's partition is the
hash of Kafka's own Java client, as for every client. What comes within a moment goes to one partition, what comes in
the next moment to the next one, as with Kafka's *sticky partitioner* (KIP-480): one batch where there would be one for
each key. Each costs the client a tenth of a millisecond and the broker about as much, and in a transaction a marker
too. Over many moments all partitions get the same.
"""

import re
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.errors import for_code

from schemas.topic import Topic
from schemas.topics import ROLLOUTS
from trinity_bus.bus.client.connection import kafka_errors, translated
from trinity_bus.bus.client.internals import murmur2
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import BusError, TopicMismatchError

SETTLE_S: Final = 10.0  # after which each broker knows a partition that one of them knows
# Of a topic. A broker takes any number, works on it for hours, opens two files for each at every start, and does not
# start any more where those are too many; and takes none away.
MOST_PARTITIONS: Final = 1024


def partitions_of(topic: Topic, known: Collection[int] | None) -> range:
    """Return the partitions of a topic; ``known``: what a client knows of them, None where nothing yet."""
    return range(max(topic.partitions, len(known or ())) if topic.grows else topic.partitions)


def refusal(topic: Topic, has: int, wanted: int) -> str | None:
    """Return why a topic of ``has`` partitions cannot have ``wanted``, and what to do instead; None if it can."""
    if wanted < has:
        return f"{topic.name} has {has} partitions, and Kafka takes none away: make a mesh in another namespace"
    if topic.grows:
        if wanted <= MOST_PARTITIONS:
            return None
        return (
            f"{wanted} partitions are too many for {topic.name}, of which no broker could be freed again: give it "
            f"{MOST_PARTITIONS} at most, and make several meshes where that is too few"
        )
    why = (
        "its records are read in the order in which they were written, so it has one partition"
        if topic.partitions == 1
        else f"which one is read for a {topic.key} follows from their number, and would be another one from now on"
    )
    return f"{topic.name} has {topic.partitions} partitions for good: {why}; where that is too few, make several meshes"


async def grow(admin: AIOKafkaAdminClient, settings: KafkaSettings, topic: Topic, wanted: int) -> int:
    """Give a topic so many partitions. Return how many it had. Raises TopicMismatchError or BusError."""
    name = topic.full_name(settings.namespace)
    with kafka_errors(f"grow {name}"):
        (described,) = await admin.describe_topics([name])
        if described["error_code"]:
            raise BusError(f"grow {name}: {for_code(described['error_code']).__name__}: trinity-bus topics create")
        has = len(described["partitions"])
        if (why := refusal(topic, has, wanted)) is not None:
            raise TopicMismatchError(why)
        if wanted > has:
            try:
                await admin.create_partitions({name: NewPartitions(total_count=wanted)})
            # Of the client library, where the broker that it would ask is gone.
            except TimeoutError as error:
                raise translated(error, f"grow {name}") from error
    return has


@lru_cache(maxsize=1024)  # the hash is plain Python, and senders use their own name again and again
def partition_of(key: str | bytes, partitions: int) -> int:
    raw = key.encode() if isinstance(key, str) else key
    return int((murmur2(raw) & 0x7FFFFFFF) % partitions)


_numbered: Final = re.compile("(.*-)([0-9]{1,9})").fullmatch


def lane_partition(explorer: str, partitions: int = ROLLOUTS.partitions) -> int:
    """Return the partition of ``rollouts`` that an explorer chooses for its orders: its lane."""
    # Others may share it; an explorer reads this one alone and passes over orders to others. Names that differ in a
    # number at the end lie on different lanes as long as there are any: each order wakes whoever shares its lane.
    if (numbered := _numbered(explorer)) is None:
        return partition_of(explorer, partitions)
    fleet, number = numbered.groups()
    return (partition_of(fleet, partitions) + int(number)) % partitions


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

    def place(self, size: int, now: float, known: Callable[[], int]) -> int:
        """Return the partition of a record of ``size`` bytes."""
        # ``known``: how many partitions the topic has by now; more than before are used a while later, when each broker
        # knows of them.
        if now >= self._until or self._bytes + size > MOMENT_BYTES:
            self._look(now, known())
            self._current = (self._current + 1) % self._partitions
            self._until = now + MOMENT_S
            self._bytes = 0
        self._bytes += size
        return self._current

    def _look(self, now: float, known: int) -> None:
        if known <= self._partitions:
            self._grown_at = None
        elif self._grown_at is None:
            self._grown_at = now
        elif now >= self._grown_at + SETTLE_S:
            self._partitions, self._grown_at = known, None
