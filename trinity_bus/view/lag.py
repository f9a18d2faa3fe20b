"""How far the coordinator is behind."""

from schemas.topics import COORDINATOR_INPUTS
from trinity_bus.bus import Bus


async def coordinator_lag(bus: Bus) -> dict[str, int]:
    """How many offsets of its inputs the coordinator has still to read. Topic name to offsets.

    Raises:
        BusError: The broker does not tell in time.
    """
    committed = await bus.committed_offsets(f"{bus.settings.namespace}.coordinator", COORDINATOR_INPUTS)
    result = {}
    for topic in COORDINATOR_INPUTS:
        first, end = await bus.beginning_offsets(topic), await bus.end_offsets(topic)
        result[topic.name] = sum(end[p] - committed.get((topic.name, p), first[p]) for p in end)
    return result
