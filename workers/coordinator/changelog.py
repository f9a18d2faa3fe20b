"""The coordinator's state in its own topic: what every transaction adds, and what a successor makes of it.

Besides the machine's entries there are two of the service's own, committed with the decisions that they belong to:

===========  =======================================================================================================
``inputs``   how far the input topics were read, so that a successor goes on exactly where the last transaction ended
``leader``   who works, or has left; see :mod:`trinity_bus.coordination.leadership`
===========  =======================================================================================================

About once a second the input positions are committed under the consumer group ``<namespace>.coordinator`` too, in a
transaction like the others, for the eyes of monitoring. Nothing depends on them: a broker forgets those of a group that
was idle for a week, and committing them each time would take two more round trips in every transaction.

Rows of a newer program may be longer. A value that cannot be read raises
:class:`~trinity_bus.coordination.StateError`: no coordinator guesses its state.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgpack

from trinity_bus.bus import Received, Undecodable
from trinity_bus.coordination import Leader, StateError

INPUTS_KEY = "inputs"
LEADER_KEY = "leader"

type Positions = dict[tuple[str, int], int]  # (topic, partition) to the offset to read next


class Changelog:
    """The changelog so far, as entries: kept up to date, it spares whoever takes over the reading of it."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}  # the machine's
        self.positions: Positions = {}
        self.leader: Leader | None = None
        self.records = 0  # how many were taken in

    def take(self, received: Received[Any]) -> None:
        """Take in the next record; StateError where this program cannot read it."""
        if isinstance(received.record, Undecodable):
            raise StateError(
                f"{received.place} cannot be read ({received.record.reason}: {received.record.detail}): what the "
                "coordinator knew is not whole any more"
            )
        self.records += 1
        key = received.key or ""
        if received.is_null:
            self.entries.pop(key, None)
        elif key == INPUTS_KEY:
            self.positions = unpack_positions(received.raw)
        elif key == LEADER_KEY:
            self.leader = unpack_leader(received.raw)
        else:
            self.entries[key] = received.raw

    def committed(self, changes: Iterable[tuple[str, bytes | None]], positions: Positions) -> None:
        """Take in what this process has written itself."""
        for key, value in changes:
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value
        self.positions = positions


def pack_positions(positions: Mapping[tuple[str, int], int]) -> bytes:
    value: bytes = msgpack.packb([[topic, partition, offset] for (topic, partition), offset in positions.items()])
    return value


def unpack_positions(value: bytes) -> Positions:
    try:
        return {(topic, partition): offset for topic, partition, offset, *_ in msgpack.unpackb(value)}
    except (ValueError, TypeError) as error:
        raise StateError(f"entry {INPUTS_KEY!r} of the coordinator's state cannot be read: {error}") from error


def pack_leader(leader: Leader) -> bytes:
    value: bytes = msgpack.packb([leader.name, leader.incarnation, leader.state])
    return value


def unpack_leader(value: bytes) -> Leader:
    problem: object
    try:
        match msgpack.unpackb(value):
            case [str(name), str(incarnation), ("taking_over" | "active" | "left") as state, *_]:
                return Leader(name, incarnation, state)
            case other:
                problem = other
    except (ValueError, TypeError) as error:
        problem = error
    raise StateError(f"entry {LEADER_KEY!r} of the coordinator's state cannot be read: {problem}")
