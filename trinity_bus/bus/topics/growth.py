"""More partitions for a topic that is in use: which can have them, and who learns of them when.

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
"""

from collections.abc import Collection
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.errors import for_code

from schemas.topic import Topic
from trinity_bus.bus.client.connection import kafka_errors, translated
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
