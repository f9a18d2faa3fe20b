"""Completed turns of attempts, on the log: written as they end, and found again for the attempts that follow.

::

    a runner: a turn is over --keep--> checked --> ``turns``, durable --> the runner goes on with the next
                                                     '-- the first of an attempt: its heartbeat tells where it lies

    an order that says where earlier turns lie --done--> those of this task, from there to the end of its partition
                                                         --> of each run the chain that came furthest --> the runner

Failures: a turn that is not its attempt's, or too much, is refused, and its workflow is told. Turns that the log has no
more are gone: the run begins anew, and a line says so.
"""

import asyncio
import logging
from collections.abc import Callable

from schemas import Dispatch, Position
from schemas.codec import decode
from schemas.topics import TURNS
from schemas.turn import Turn, chain
from trinity_bus.bus import Bus, Producer
from trinity_bus.errors import RecordGoneError
from trinity_bus.rollout import WorkflowError
from trinity_bus.runners.messages import MAX_TURNS_BYTES
from trinity_bus.runners.service import AttemptKey, key_of

_log = logging.getLogger(__name__)

_AT_ONCE = 4  # Each reads a part of a partition, by a connection of its own


class TurnKeeper:
    """Keeps turns. ``on_first`` is called when an attempt has completed its first turn."""

    def __init__(self, bus: Bus, producer: Producer, on_first: Callable[[], None]) -> None:
        self._bus = bus
        self._producer = producer
        self._on_first = on_first
        self._first: dict[AttemptKey, Position] = {}
        self._bytes: dict[AttemptKey, int] = {}
        self._looking = asyncio.Semaphore(_AT_ONCE)

    def first(self, attempt: AttemptKey) -> Position | None:
        return self._first.get(attempt)

    def forget(self, attempt: AttemptKey) -> None:
        self._first.pop(attempt, None)
        self._bytes.pop(attempt, None)

    async def keep(self, order: Dispatch, raw: bytes) -> None:
        """Make a turn durable; WorkflowError where it is not of this order, or they are too large together."""
        turn = decode(raw, Turn)
        said = (turn.task_id, turn.attempt, turn.workflow, turn.explorer, turn.incarnation)
        asked = (order.task.task_id, order.attempt, order.task.workflow, order.explorer, order.incarnation)
        if said != asked or not 0 <= turn.run_id - order.run_id_base < order.repeat_times:
            raise WorkflowError(f"a turn of run {turn.run_id} of {said}, asked for was {asked}")
        attempt = key_of(order)
        size = self._bytes.get(attempt, 0) + len(raw)
        if size > MAX_TURNS_BYTES:
            raise WorkflowError(f"the turns of an attempt are {size} bytes, at most {MAX_TURNS_BYTES} are kept")
        self._bytes[attempt] = size
        position = await (await self._producer.send(TURNS, turn.task_id, turn, encoded=raw))
        if attempt not in self._first:
            self._first[attempt] = position
            self._on_first()

    async def done(self, order: Dispatch) -> list[bytes]:
        """Return what earlier attempts at the runs of an order have completed, as it is on the log."""
        if order.turns is None:
            return []
        async with self._looking:
            try:
                found = await self._find(order, order.turns)
            except RecordGoneError as error:
                _log.warning("task %s begins anew: its turns are gone: %s", order.task.task_id, error)
                return []
        runs: dict[int, list[Turn]] = {}
        for turn, _ in found.values():
            runs.setdefault(turn.run_id, []).append(turn)
        kept = [
            found[turn.run_id, turn.number, turn.attempt][1] for run_id in sorted(runs) for turn in chain(runs[run_id])
        ]
        _log.info("task %s goes on from %d turns of earlier attempts", order.task.task_id, len(kept))
        return kept

    async def _find(self, order: Dispatch, since: Position) -> dict[tuple[int, int, int], tuple[Turn, bytes]]:
        # By run, number and attempt, as many as an attempt may have.
        # Where they lie was told by another explorer: of a place that there is not, no broker tells anything.
        if since.offset >= (await self._bus.end_offsets(TURNS)).get(since.partition, 0):
            raise RecordGoneError(f"{TURNS.name}/{since.partition} ends before {since.offset}")
        found: dict[tuple[int, int, int], tuple[Turn, bytes]] = {}
        start = {(TURNS.name, since.partition): since.offset}
        size = 0
        async with self._bus.reader(TURNS, partitions=[since.partition], start=start, key=order.task.task_id) as reader:
            async for received in reader.replay():
                turn = received.record
                if not isinstance(turn, Turn) or turn.task_id != order.task.task_id:
                    continue
                if turn.workflow != order.task.workflow:
                    # A session of a gateway, by the same name.
                    continue
                size += len(received.raw)
                if size > MAX_TURNS_BYTES:
                    _log.warning("task %s has more turns than an attempt may have", order.task.task_id)
                    break
                if 0 <= turn.run_id - order.run_id_base < order.repeat_times and turn.attempt < order.attempt:
                    found.setdefault((turn.run_id, turn.number, turn.attempt), (turn, received.raw))
        return found
