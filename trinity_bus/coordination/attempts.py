"""Handing tasks out and taking them back: what the books, the fleet and the outbox must agree on.

A running attempt is in three places: in its task, in the ledger's ``running``, and in the ``assigned`` of its explorer.
All changes to them are made here.
"""

from schemas import Cancel, Dispatch, RolloutFinished
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination import results
from trinity_bus.coordination.commands import Answered, BatchMoved, Fact, Order, Outbox
from trinity_bus.coordination.dispatch import Room
from trinity_bus.coordination.fleet import Explorer, Fleet
from trinity_bus.coordination.ledger import Ledger
from trinity_bus.coordination.limits import short_error
from trinity_bus.coordination.tasks import Attempt, OpenTask, Result
from trinity_bus.coordination.versions import WeightSync


class Attempts:
    """Starts attempts where there is room, and ends them."""

    def __init__(
        self, settings: CoordinatorSettings, ledger: Ledger, fleet: Fleet, sync: WeightSync, out: Outbox
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._fleet = fleet
        self._sync = sync
        self._out = out

    def dispatch(self, now: float) -> None:
        """Hands out tasks until there is no more room, or nothing that fits it."""
        batches = self._ledger.handed_out()
        if not batches:
            return
        explorers = [explorer for explorer in self._fleet.live() if explorer.free > 0]
        for batch in batches:
            room = Room(explorers, batch.min_version)
            while (task := self._ledger.next_task(batch, room.workflows)) is not None:
                explorer = room.place(task)
                self._start(task, explorer, batch.min_version, now)
                room.taken(explorer)

    def failed(self, task: OpenTask, attempt: Attempt, error: str, fact: Fact, *, cancel: bool = False) -> None:
        """The running attempt ended without a result: the task is tried again, or fails.

        Args:
            task: The task.
            attempt: Its running attempt.
            error: What went wrong.
            fact: What to count it as.
            cancel: Whether its explorer may still be at it.
        """
        task_id = task.task.task_id
        error = short_error(error)
        self._free(task)
        if cancel:
            order = Cancel(
                explorer=attempt.explorer,
                incarnation=attempt.incarnation,
                task_id=task_id,
                attempt=attempt.number,
                reason=error,
            )
            self._out.add(Order(order, task.traceparent))
        self._out.observe(fact, task_id, f"attempt {attempt.number} on {attempt.explorer}: {error}")
        if not self._ledger.stopped(task, error):
            self.give_up(task, error)

    def give_up(self, task: OpenTask, error: str) -> None:
        """The task, which is not running, fails for good, with its first error."""
        first = task.first_error or short_error(error)
        self._out.observe(Fact.TASK_FAILED, task.task.task_id, first)
        self.settle(task, results.failure(task, first))

    def settle(self, task: OpenTask, result: Result, event: RolloutFinished | None = None) -> None:
        """The task has its result; ``event`` is what its attempt said."""
        self._free(task)
        runs = task.task.repeat_times or self._settings.group_size
        record = results.told(task, task.task.batch_type, result, event, runs)
        self._out.add(Answered(record, result.traceparent or task.traceparent))
        complete = self._ledger.settle(task, result)
        if complete is not None:
            self._out.add(BatchMoved(complete))

    def lose(self, explorer: Explorer, reason: str, *, cancel: bool) -> None:
        """A life of an explorer is over; what it ran is tried again or fails. To be called while it is in the fleet."""
        lost = sorted((self._ledger.tasks[task_id] for task_id in explorer.assigned), key=lambda task: task.order)
        for task in lost:
            if task.running is not None:
                self.failed(task, task.running, reason, Fact.ATTEMPT_FAILED, cancel=cancel)
        self._sync.departed((explorer.name, explorer.incarnation))

    def _start(self, task: OpenTask, explorer: Explorer, min_version: int, now: float) -> None:
        wanted = task.task
        timeout_s = wanted.timeout_s or self._settings.task_timeout_s
        attempt = task.start(explorer.name, explorer.incarnation, timeout_s, now)
        explorer.assigned.add(wanted.task_id)
        self._ledger.started(task)
        dispatch = Dispatch(
            explorer=explorer.name,
            incarnation=explorer.incarnation,
            task=wanted,
            attempt=attempt.number,
            batch_id=task.batch_id,
            batch_type=wanted.batch_type,
            repeat_times=wanted.repeat_times or self._settings.group_size,
            min_version=min_version,
            timeout_s=timeout_s,
        )
        self._out.add(Order(dispatch, task.traceparent))

    def _free(self, task: OpenTask) -> None:
        """Its explorer has a slot more."""
        if task.running is not None:
            explorer = self._fleet.find(task.running.explorer, task.running.incarnation)
            if explorer is not None:
                explorer.assigned.discard(task.task.task_id)
