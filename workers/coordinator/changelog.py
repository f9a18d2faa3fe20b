"""The coordinator's state in its own topic: what is read at start, and what every transaction adds.

Besides the machine's entries there is one of the service's own, ``inputs``: how far tasks and events were read. It is
committed with the decisions that were made of them, so a successor goes on exactly where the last transaction ended.
About once a second the same positions are committed under the consumer group ``<namespace>.coordinator`` too, in a
transaction like the others, for the eyes of monitoring. Nothing depends on them: a broker forgets those of a group that
was idle for a week, and committing them each time would take two more round trips in every transaction.
"""

from collections.abc import Mapping

import msgpack

from schemas.topics import COORDINATOR_STATE, Topic
from trinity_bus.bus import Bus
from trinity_bus.coordination import CoordinatorMachine, StateError

INPUTS_KEY = "inputs"

type Positions = dict[tuple[str, int], int]
"""(topic, partition) to the offset to read next."""


def pack_positions(positions: Mapping[tuple[str, int], int]) -> bytes:
    """The value of the ``inputs`` entry."""
    value: bytes = msgpack.packb([[topic, partition, offset] for (topic, partition), offset in positions.items()])
    return value


def unpack_positions(value: bytes) -> Positions:
    """The inverse of :func:`pack_positions`.

    Raises:
        StateError: It is not such a value.
    """
    try:
        return {(topic, partition): offset for topic, partition, offset in msgpack.unpackb(value)}
    except (ValueError, TypeError) as error:
        raise StateError(f"entry {INPUTS_KEY!r} of the coordinator's state cannot be read: {error}") from error


async def restore(bus: Bus, machine: CoordinatorMachine) -> tuple[Positions, int]:
    """Makes a new machine what its predecessor's was at its last commit.

    To be called once the predecessor can commit no more.

    Returns:
        Where to go on reading, and the number of changelog records read.

    Raises:
        StateError: The changelog cannot be read by this program.
    """
    positions: Positions = {}
    latest: dict[str, bytes] = {}
    count = 0
    async with bus.reader(COORDINATOR_STATE, start="beginning") as reader:
        async for received in reader.replay():
            count += 1
            key = received.key or ""
            if received.is_null:
                latest.pop(key, None)
            elif key == INPUTS_KEY:
                positions = unpack_positions(received.raw)
            else:
                latest[key] = received.raw
    machine.restore(latest.items())
    return positions, count


async def readable(bus: Bus, topics: tuple[Topic, ...], positions: Positions) -> tuple[Positions, int]:
    """The positions, moved past what retention has deleted; and how many records were lost to it."""
    lost = 0
    moved = dict(positions)
    for topic in topics:
        for partition, first in (await bus.beginning_offsets(topic)).items():
            wanted = positions.get((topic.name, partition))
            if wanted is not None and wanted < first:
                lost += first - wanted
                moved[topic.name, partition] = first
    return moved, lost
