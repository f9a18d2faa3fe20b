"""Brings the store forward as the log grows, and fetches what stands on the log behind a row.

::

    CONNECTING --the log is another, or ends before what was read--> the store is emptied
        |
        v
    READING (behind) <--> FOLLOWING (at the end)        READING commits every ``_COMMIT_S``, FOLLOWING what it gets
        |
        '--the broker, a topic or the disk fails--> WAITING (a line says why) --1 s--> CONNECTING, from the store

Nothing is kept but in the store, so whatever fails is tried again from there: a broker that comes back, topics that a
mesh has not made yet, a disk that has room again. The mesh sees one more reader of whole topics, without a group, which
takes ``READ_BYTES_S`` at most.

Tokens, log-probabilities and masks are thousands of times larger than their row, and nobody looks at most of them: they
stay on the log. When retention has deleted them, the row is what is left, and the page says so.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, NamedTuple

from schemas import ExperienceGroup, Position, TokenFigures, topics
from schemas.errors import counted
from schemas.groups.pieces import join_groups
from schemas.topic import Topic
from schemas.topics import ALL_DEAD_LETTERS, EXPERIENCES, TOKEN_FIGURES
from trinity_bus import awake
from trinity_bus.bus import Bus, Received, Undecodable
from trinity_bus.bus.read.offsets import readable
from trinity_bus.console.index.store import Store
from trinity_bus.console.index.terms import GroupRow, Place, StoreError, UnreadableError
from trinity_bus.errors import BusError
from trinity_bus.telemetry.metrics import RECORDS_LOST

log = logging.getLogger(__name__)

# What the tables are made of
TOPICS: Final[tuple[Topic, ...]] = (
    topics.TASKS,
    topics.ROLLOUTS,
    topics.EXPERIENCES,
    topics.EXPLORER_EVENTS,
    topics.TRAINER_EVENTS,
    topics.COORDINATOR_EVENTS,
    topics.RESULTS,
    topics.BATCHES,
    topics.STEPS,
    topics.TOKEN_FIGURES,
    topics.MODEL_VERSIONS,
    topics.VERSION_HISTORY,
    *topics.ALL_DEAD_LETTERS,
)

READ_BYTES_S: Final = 64 << 20
_FETCH_BYTES: Final = 8 << 20
_MAX_RECORDS: Final = 1000
_WAIT_S: Final = 1.0
_READ_S: Final = 0.05  # Where nothing comes for so long while it is behind, it may be at the end
_GATHER_S: Final = 0.4  # How long records gather before they are written: each time costs a fetch and a transaction
_COMMIT_S: Final = 0.5
LOOK_S: Final = 10.0  # How often it looks whether it is still the same log
_AGAIN_S: Final = 1.0


class IndexStanding(NamedTuple):
    """How far the store is."""

    state: Literal["connecting", "reading", "following", "waiting"]
    line: str  # For people
    behind: int = 0  # Records of the log that it has not


async def follow_log(bus: Bus, store: Store) -> AsyncGenerator[IndexStanding]:
    """Feed a store from the log, without end; yield when there is something new in it, or in how far it is.

    ``bus`` is made, and not started: the broker may be away.
    """
    told = IndexStanding("connecting", "connecting to the log")
    yield told
    while True:
        try:
            async with bus, aclosing(_read(bus, store)) as standings:
                async for told in standings:
                    yield told
        except (BusError, StoreError) as error:
            if told.line != str(error):
                log.warning("the console's index waits: %s", error)
            told = IndexStanding("waiting", str(error))
            yield told
        await asyncio.sleep(_AGAIN_S)


async def _read(bus: Bus, store: Store) -> AsyncGenerator[IndexStanding]:
    positions = await _start(bus, store)
    is_behind = True
    yield IndexStanding("reading", "reading the log")
    async with bus.reader(
        *TOPICS, start=positions, max_records=_MAX_RECORDS, fetch_bytes=_FETCH_BYTES, gather_s=_GATHER_S
    ) as reader:
        looked_at = committed_at = awake.now()
        while True:
            began = awake.now()
            if began - looked_at > LOOK_S:
                # A reader does not tell that its topic was deleted, or made anew under it.
                looked_at = began
                if not store.is_of(await _ids(bus)):
                    raise StoreError("the log was made anew, and so is the index")
            records = await reader.batch(_READ_S if is_behind else _WAIT_S)
            hold = bool(records) and is_behind and began - committed_at < _COMMIT_S
            if records or store.holds:
                await asyncio.to_thread(store.take, records, reader.positions, hold=hold)
            if not hold:
                committed_at = awake.now()
            at_end = is_behind and not records and await reader.is_at_end()
            is_behind = is_behind and not at_end
            if at_end or (records and not hold):
                behind = sum(reader.lag().values())
                line = f"{counted(behind, 'record')} behind" if behind else "up to date"
                yield IndexStanding("reading" if is_behind else "following", line, behind)
            size = sum(len(record.raw) for record in records)
            await asyncio.sleep(max(0.0, size / READ_BYTES_S - (awake.now() - began)))


async def _start(bus: Bus, store: Store) -> dict[tuple[str, int], int]:
    ids = await _ids(bus)
    if not store.is_of(ids):
        log.warning("the log is another than the console's index was made of: it is made anew")
        await asyncio.to_thread(store.begin_anew)
    found = await readable(bus, TOPICS, store.positions)
    if found.beyond:
        log.warning("the log has lost records, so the console's index is made anew: %s", found.beyond[0])
        await asyncio.to_thread(store.begin_anew)
        found = await readable(bus, TOPICS, store.positions)
    if found.lost:
        RECORDS_LOST.add(found.lost)
        log.warning("retention has deleted %d records before the console's index read them", found.lost)
    await asyncio.to_thread(store.move, found.positions, found.lost)
    store.belong_to(ids)
    return found.positions


async def _ids(bus: Bus) -> dict[str, str]:
    # Which log it is: of each topic the cluster, and the id that it was made with
    ids = {}
    for topic in TOPICS:
        identity = await bus.identity(topic)
        ids[topic.name] = f"{identity.cluster}/{identity.topic}"
    return ids


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
