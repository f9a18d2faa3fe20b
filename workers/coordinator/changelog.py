"""The coordinator's state in its own topic: what every transaction adds, and what a successor makes of it.

Besides the machine's entries there are two of the service's own, committed with the decisions that they belong to:

===========  =======================================================================================================
``inputs``   how far the input topics were read, so that a successor goes on exactly where the last transaction ended
``leader``   who works, or has left; see :mod:`trinity_bus.coordination.leadership`
===========  =======================================================================================================

About once a second the input positions are committed under the consumer group ``<namespace>.coordinator`` too, for
monitoring; nothing depends on them. A value that cannot be read raises :class:`~trinity_bus.coordination.StateError`:
no coordinator guesses its state.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

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
        for key, value in changes:
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value
        self.positions = positions


class _Position(msgspec.Struct, array_like=True):
    topic: str
    partition: int
    offset: int


def pack_positions(positions: Mapping[tuple[str, int], int]) -> bytes:
    return msgspec.msgpack.encode([_Position(*place, offset) for place, offset in positions.items()])


def unpack_positions(value: bytes) -> Positions:
    return {(at.topic, at.partition): at.offset for at in _read(INPUTS_KEY, value, list[_Position])}


def unpack_leader(value: bytes) -> Leader:
    return _read(LEADER_KEY, value, Leader)


def _read[T](key: str, value: bytes, of: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(value, type=of)
    except ValueError as error:
        raise StateError(f"entry {key!r} of the coordinator's state cannot be read: {error}") from error
