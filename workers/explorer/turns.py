"""Completed turns of attempts, and responses under way, on the log: written, and found again for those that follow.

::

    a runner: a turn is over --keep--> checked --> ``turns``, durable --> the runner goes on with the next
                                                     '-- the first of an attempt: its heartbeat tells where it lies
    more tokens of responses -----------keep_partial--> ``turns``, likewise (:mod:`trinity_bus.runners.partials`)

    an order that says where earlier turns lie --done--> those of this task, from there to the end of its partition
                                                         --> of each run the chain that came furthest --> the runner
                                                         --> partial responses of the same runs --> the next requests

An order says which attempts a rollback has discarded: what these write still is passed over.

Failures: a turn that is not its attempt's, or too much, is refused, and its workflow is told. Turns that the log has no
more are gone: the run begins anew, and a line says so.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from schemas import Answer, Dispatch, PartialResponses, Position, Record
from schemas.codec import decode, encode
from schemas.topics import TURNS
from schemas.turn import MAX_ANSWERS, Turn, chain
from trinity_bus.bus import Bus, Producer
from trinity_bus.errors import RecordGoneError
from trinity_bus.rollout.workflow import WorkflowError
from trinity_bus.runners.messages import MAX_TURNS_BYTES
from trinity_bus.runners.partials import MAX_PARTIALS_BYTES
from trinity_bus.runners.service import AttemptKey, key_of
from trinity_bus.runtime.service import unless_small

_log = logging.getLogger(__name__)

_PART_BYTES = 1 << 20  # of partial responses in a record, unless one alone has more
_AT_ONCE = 4  # Each reads a part of a partition, by a connection of its own


class Earlier(NamedTuple):
    """What earlier attempts at the runs of an order have left on the log."""

    turns: list[bytes]  # as they came off it
    answers: list[Answer]  # in these turns
    partials: list[PartialResponses]


class TurnKeeper:
    """Keeps turns. ``on_first`` is called when an attempt has completed its first turn, or a part of a response."""

    def __init__(self, bus: Bus, producer: Producer, on_first: Callable[[], None]) -> None:
        self._bus = bus
        self._producer = producer
        self._on_first = on_first
        self._first: dict[AttemptKey, Position] = {}
        self._bytes: Counter[tuple[AttemptKey, type[Record]]] = Counter()  # of an attempt's records of a type
        self._writing: set[asyncio.Task[None]] = set()
        self._looking = asyncio.Semaphore(_AT_ONCE)

    def first(self, attempt: AttemptKey) -> Position | None:
        return self._first.get(attempt)

    def forget(self, attempt: AttemptKey) -> None:
        self._first.pop(attempt, None)
        for kind in (Turn, PartialResponses):
            del self._bytes[attempt, kind]

    async def keep(self, order: Dispatch, raw: bytes) -> Turn:
        """Make a turn durable and return it; WorkflowError: it is not of this order, or they are too large together."""
        turn = await unless_small(len(raw), lambda: decode(raw, Turn))
        said = (turn.task_id, turn.attempt, turn.workflow, turn.explorer, turn.incarnation)
        asked = (order.task.task_id, order.attempt, order.task.workflow, order.explorer, order.incarnation)
        if said != asked or not 0 <= turn.run_id - order.run_id_base < order.repeat_times:
            raise WorkflowError(f"a turn of run {turn.run_id} of {said}, asked for was {asked}")
        size = self._bytes[key_of(order), Turn] + len(raw)
        if size > MAX_TURNS_BYTES:
            raise WorkflowError(f"the turns of an attempt are {size} bytes, at most {MAX_TURNS_BYTES} are kept")
        await self._write(order, turn, raw)
        return turn

    async def keep_partial(self, order: Dispatch, answers: Sequence[Answer]) -> None:
        """Make more tokens of responses durable, unless there are too many of the attempt."""
        parts, size = [list[Answer]()], 0
        for answer in answers:
            more = sum(2 * len(one.token_ids) + len(one.kept or b"") for one in answer.responses or ())
            if parts[-1] and (size + more > _PART_BYTES or len(parts[-1]) == MAX_ANSWERS):
                parts.append([])
                size = 0
            parts[-1].append(answer)
            size += more
        self._bytes[key_of(order), PartialResponses] += 0
        # The request that waits for it may be cancelled, and tokens of others are in it.
        writing = asyncio.create_task(self._keep_parts(order, parts), name=f"partial responses {key_of(order)}")
        self._writing.add(writing)
        writing.add_done_callback(self._is_written)
        await asyncio.shield(writing)

    def _is_written(self, writing: asyncio.Task[None]) -> None:
        self._writing.discard(writing)
        if not writing.cancelled() and (error := writing.exception()) is not None:
            _log.warning("%s are not written: %s", writing.get_name(), error)

    async def _keep_parts(self, order: Dispatch, parts: Sequence[list[Answer]]) -> None:
        for answers in parts:
            if (key_of(order), PartialResponses) in self._bytes:
                await self._keep_part(order, answers)

    async def _keep_part(self, order: Dispatch, answers: list[Answer]) -> None:
        record = PartialResponses(
            task_id=order.task.task_id,
            attempt=order.attempt,
            run_id_base=order.run_id_base,
            repeat_times=order.repeat_times,
            workflow=order.task.workflow,
            explorer=order.explorer,
            incarnation=order.incarnation,
            answers=answers,
        )
        raw = encode(record)
        if self._bytes[key_of(order), PartialResponses] + len(raw) <= MAX_PARTIALS_BYTES:
            await self._write(order, record, raw)

    async def _write(self, order: Dispatch, record: Turn | PartialResponses, raw: bytes) -> None:
        attempt = key_of(order)
        self._bytes[attempt, type(record)] += len(raw)
        position = await (await self._producer.send(TURNS, record.task_id, record, encoded=raw))
        # An attempt that has ended meanwhile is forgotten.
        if (attempt, type(record)) in self._bytes and attempt not in self._first:
            self._first[attempt] = position
            self._on_first()

    async def done(self, order: Dispatch) -> Earlier:
        """Return what earlier attempts at the runs of an order have completed or begun, as it is on the log."""
        if order.turns is None:
            return Earlier([], [], [])
        async with self._looking:
            try:
                found, partials = await self._find(order, order.turns)
            except RecordGoneError as error:
                _log.warning("task %s begins anew: its turns are gone: %s", order.task.task_id, error)
                return Earlier([], [], [])
        runs: dict[int, list[Turn]] = {}
        for turn, _ in found.values():
            runs.setdefault(turn.run_id, []).append(turn)
        kept = [turn for run_id in sorted(runs) for turn in chain(runs[run_id])]
        _log.info(
            "task %s goes on from %d turns of earlier attempts, and from what %d records have of responses",
            order.task.task_id,
            len(kept),
            len(partials),
        )
        raw = [found[turn.run_id, turn.number, turn.attempt][1] for turn in kept]
        return Earlier(raw, [answer for turn in kept for answer in turn.answers], partials)

    async def _find(
        self, order: Dispatch, since: Position
    ) -> tuple[dict[tuple[int, int, int], tuple[Turn, bytes]], list[PartialResponses]]:
        # Turns by run, number and attempt, as many bytes of them as an attempt may have, and of partial responses.
        # Where they lie was told by another explorer: of a place that there is not, no broker tells anything.
        if since.offset >= (await self._bus.end_offsets(TURNS)).get(since.partition, 0):
            raise RecordGoneError(f"{TURNS.name}/{since.partition} ends before {since.offset}")
        found: dict[tuple[int, int, int], tuple[Turn, bytes]] = {}
        partials: list[PartialResponses] = []
        start = {(TURNS.name, since.partition): since.offset}
        size = partial_size = 0
        async with self._bus.reader(TURNS, partitions=[since.partition], start=start, key=order.task.task_id) as reader:
            async for received in reader.replay():
                turn = received.record
                if not isinstance(turn, Turn | PartialResponses) or turn.task_id != order.task.task_id:
                    continue
                if turn.workflow != order.task.workflow or not order.discarded < turn.attempt < order.attempt:
                    # By the same name, a session of a gateway; of discarded versions; or of an attempt under way.
                    continue
                if isinstance(turn, PartialResponses):
                    partial_size += len(received.raw)
                    # Of other runs another attempt may have given what became of it.
                    is_of_these = (turn.run_id_base, turn.repeat_times) == (order.run_id_base, order.repeat_times)
                    if is_of_these and partial_size <= MAX_TURNS_BYTES:
                        partials.append(turn)
                    continue
                size += len(received.raw)
                if size > MAX_TURNS_BYTES:
                    _log.warning("task %s has more turns than an attempt may have", order.task.task_id)
                    break
                if 0 <= turn.run_id - order.run_id_base < order.repeat_times:
                    found.setdefault((turn.run_id, turn.number, turn.attempt), (turn, received.raw))
        return found, partials
