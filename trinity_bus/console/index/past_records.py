"""What stands on the log behind a row of the index, fetched when somebody looks at it.

Tokens, log-probabilities and masks are thousands of times larger than their row, and nobody looks at most of them: they
stay on the log. When retention has deleted them, the row is what is left, and the page says so.
"""

from collections.abc import Sequence
from typing import Any, Final

from schemas import ExperienceGroup, Position, TokenFigures
from schemas.groups.pieces import join_groups
from schemas.topic import Topic
from schemas.topics import ALL_DEAD_LETTERS, EXPERIENCES, TOKEN_FIGURES
from trinity_bus import awake
from trinity_bus.bus import Bus, Received, Undecodable
from trinity_bus.console.index.answers import GroupRow, Place
from trinity_bus.console.index.questions import UnreadableError
from trinity_bus.errors import BusError

MAX_PARTS: Final = 64  # Of one group
_LOOK_S: Final = 10.0


class PastRecords:
    """Fetches single records by their places, one at a time, over a bus of its own: each waits for the last."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def group(self, parts: Sequence[GroupRow]) -> ExperienceGroup:
        """Return a group with all its tokens, its parts joined; its samples come from ``samples()``.

        Raises:
            RecordGoneError: Retention has deleted it, or a part of it.
            UnreadableError: It is no group of experiences, or its parts are too many to be looked at.
            BusError: The broker does not answer.
        """
        if len(parts) > MAX_PARTS:
            raise UnreadableError(f"it lies in {len(parts)} parts; {MAX_PARTS} can be looked at together")
        found = [_as(await self._fetch(EXPERIENCES, part.partition, part.offset), ExperienceGroup) for part in parts]
        for part, record in zip(parts, found, strict=True):
            if (record.task_id, len(record)) != (part.task_id, part.samples):
                raise UnreadableError(f"{part.partition}-{part.offset} has become another group: delete the index")
        return join_groups(found)

    async def figures(self, place: Place) -> TokenFigures:
        """Return what a trainer has told of the tokens of a group. Raises what ``group`` does."""
        return _as(await self._fetch(TOKEN_FIGURES, place.partition, place.offset), TokenFigures)

    async def dead_letter(self, place: Place) -> Received[Any]:
        """Return a dead letter as it lies there: its value, key and headers are what can be sent again.

        Raises:
            UnreadableError: There are no dead letters on that topic.
            RecordGoneError, BusError: As of ``group``.
        """
        topic = next((topic for topic in ALL_DEAD_LETTERS if topic.name == place.topic), None)
        if topic is None:
            raise UnreadableError(f"{place.topic[:80]!r} is no topic of dead letters")
        return await self._fetch(topic, place.partition, place.offset)

    async def _fetch(self, topic: Topic, partition: int, offset: int) -> Received[Any]:
        at = Position(partition=partition, offset=offset)
        try:
            # Who looks at a page does not wait for a transaction that somebody has left open.
            async with awake.timeout(_LOOK_S):
                (found,) = await self._bus.fetch(topic, [at])
        except TimeoutError:
            raise BusError(f"{topic.name}/{partition}@{offset} could not be read within {_LOOK_S:g} s") from None
        return found


def _as[R](found: Received[Any], kind: type[R]) -> R:
    if isinstance(found.record, Undecodable):
        raise UnreadableError(f"{found.place} cannot be read: {found.record.detail}")
    if not isinstance(found.record, kind):
        raise UnreadableError(f"{found.place} is no {kind.__name__}")
    return found.record
