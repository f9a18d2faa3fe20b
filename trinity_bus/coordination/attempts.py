"""Handing parts of tasks out and taking them back: what the books, the fleet and the outbox must agree on.

A running attempt is in three places: in its part, in the ledger's ``running``, and in the ``assigned`` of its explorer.
All changes to them are made here.
"""

from collections.abc import Collection

from schemas import Cancel, Dispatch
from trinity_bus.coordination.batches import Batch
from trinity_bus.coordination.commands import Order, Outbox
from trinity_bus.coordination.dispatch import Room
from trinity_bus.coordination.fleet import Explorer, Fleet
from trinity_bus.coordination.ledger import Ledger
from trinity_bus.coordination.limits import short_error
from trinity_bus.coordination.pace import Pace
from trinity_bus.coordination.parts import Attempt, Part
from trinity_bus.coordination.tasks import OpenTask


class Attempts:
    """Starts attempts where there is room, and ends them."""

    def __init__(self, ledger: Ledger, fleet: Fleet, pace: Pace, out: Outbox) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._pace = pace
        self._out = out

    def dispatch(self, newest_version: int, now: float, ceiling: int | None = None) -> None:
        """Hands out parts until there is no more room, or nothing that fits it.

        Args:
            newest_version: That explorers are told to serve.
            now: The time.
            ceiling: What needs a newer version than this stays where it is; None for all versions.
        """
        if not self._ledger.line:
            return
        explorers = self.with_room()
        for batch in self._ledger.line:
            if not explorers:
                return
            min_version = _min_version(batch, newest_version)
            if ceiling is not None and min_version > ceiling:
                continue
            room = Room(explorers, min_version)
            while (queued := batch.next_in_line(room.workflows)) is not None:
                _, index, task_id = queued
                task = self._ledger.tasks[task_id]
                part = task.parts[index]
                explorer = room.place(task, part)
                self._ledger.line.take(batch, task.task.workflow)
                self._start(task, part, explorer, min_version, now)
                room.taken(explorer)
            explorers = [explorer for explorer in explorers if explorer.free > 0]

    def copy(self, attempt: Attempt, newest_version: int, now: float) -> bool:
        """Starts a second attempt beside a slow one, on another explorer. Returns whether there was room."""
        task = self._ledger.tasks[attempt.task_id]
        batch = self._ledger.batches[task.batch_id]
        min_version = _min_version(batch, newest_version)
        others = [explorer for explorer in self.with_room() if explorer.name != attempt.explorer]
        room = Room(others, min_version)
        if task.task.workflow not in room.workflows:
            return False
        part = task.parts[attempt.part]
        self._start(task, part, room.place(task, part), min_version, now)
        return True

    def with_room(self) -> list[Explorer]:
        """Explorers with a free slot."""
        return [explorer for explorer in self._fleet.live() if explorer.free > 0]

    def stop(self, attempt: Attempt) -> tuple[OpenTask, Part]:
        """The attempt is over; its explorer has a slot more. Returns its task and part."""
        del self._ledger.running[attempt.key]
        self._fleet.release(attempt.explorer, attempt.key)
        task = self._ledger.tasks[attempt.task_id]
        return task, task.stop(attempt)

    def cancel(self, attempts: Collection[Attempt], reason: str, *, restart_runner: bool = False) -> None:
        """The attempts are over, and their explorers, who may still be at them, are told."""
        for attempt in list(attempts):
            task, _ = self.stop(attempt)
            self.recall(attempt, task, reason, restart_runner=restart_runner)

    def recall(self, attempt: Attempt, task: OpenTask, reason: str, *, restart_runner: bool = False) -> None:
        """Tells the explorer of an attempt that is over."""
        order = Cancel(
            explorer=attempt.explorer,
            incarnation=attempt.incarnation,
            task_id=attempt.task_id,
            attempt=attempt.number,
            reason=short_error(reason),
            restart_runner=restart_runner,
        )
        self._out.add(Order(order, task.traceparent))

    def _start(self, task: OpenTask, part: Part, explorer: Explorer, min_version: int, now: float) -> None:
        batch = self._ledger.batches[task.batch_id]
        timeout_s = self._pace.limit(task.task.timeout_s)
        attempt = task.start(part, explorer.name, explorer.incarnation, timeout_s, now)
        self._ledger.running[attempt.key] = attempt
        self._fleet.assign(explorer, attempt)
        dispatch = Dispatch(
            explorer=explorer.name,
            incarnation=explorer.incarnation,
            task=task.task,
            attempt=attempt.number,
            batch_id=batch.batch_id,
            batch_type=batch.batch_type,
            repeat_times=part.runs,
            run_id_base=part.run_id_base,
            min_version=min_version,
            timeout_s=timeout_s,
        )
        self._out.add(Order(dispatch, task.traceparent))


def _min_version(batch: Batch, newest_version: int) -> int:
    """What an attempt that starts now needs; those of open batches get the newest weights."""
    return max(0, newest_version) if batch.is_open else batch.min_version
