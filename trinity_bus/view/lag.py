"""How far the coordinator is behind."""

from collections.abc import Collection

from schemas.topic import Topic
from schemas.topics import COORDINATOR_INPUTS
from trinity_bus.bus import Bus


async def coordinator_lag(bus: Bus, present: Collection[Topic] = COORDINATOR_INPUTS) -> dict[str, int]:
    """Return how many offsets of its inputs the coordinator has still to read, by topic name."""
    committed = await bus.committed_offsets(f"{bus.settings.namespace}.coordinator", COORDINATOR_INPUTS)
    result = dict.fromkeys((topic.name for topic in COORDINATOR_INPUTS), 0)
    for topic in set(COORDINATOR_INPUTS).intersection(present):
        first, end = await bus.beginning_offsets(topic), await bus.end_offsets(topic)
        result[topic.name] = sum(end[p] - committed.get((topic.name, p), first[p]) for p in end)
    return result
