"""The books: every task that was accepted and has not ended, every batch that is open, and what has lately ended.

::

    accept --> OpenTask, in a PENDING batch --> batch full --admit--> RUNNING: its tasks can be handed out
                  |                                                      |
                  +--settle: exactly one Result of each task ------------+--> all settled: FINALIZING
                                                                                |
                        in the order of sequence: FINALIZED, and off the books <+

A task id is on the books from acceptance to result, and remembered for ``dedup_window`` further tasks; the id of a
batch likewise. Nothing else is kept of what has ended: the log has it.

Entries of the changelog: ``books`` (the counters), ``batch/<id>``, ``task/<id>`` (written once, at acceptance),
``attempt/<id>`` (what changes about a task), ``result/<id>`` (until the batch is finalized), ``done/<n>`` and
``closed/<n>`` (the ids that are remembered).
"""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from schemas import BatchLifecycleState as State
from schemas import BatchRecord, Task
from schemas.record import BatchType
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination.batches import Batch
from trinity_bus.coordination.commands import Refusal
from trinity_bus.coordination.dispatch import batch_priority
from trinity_bus.coordination.inputs import TaskArrived
from trinity_bus.coordination.journal import Journal
from trinity_bus.coordination.limits import MAX_BATCH_TASKS
from trinity_bus.coordination.sync_policy import SyncPolicy
from trinity_bus.coordination.tasks import Attempt, OpenTask, Result
from trinity_bus.coordination.window import Window

CLOSED_WINDOW = 10_000
"""Ids of ended batches that are remembered."""
BOOKS_KEY = "books"


@dataclass(slots=True)
class Counters:
    """Numbers given out so far."""

    tasks: int = 0
    batches: int = 0
    unnamed: int = 0
    filled: int = 0
    sequence: int = 0
    """Of the train batch that was admitted last."""
    finalized: int = 0
    """Sequence of the train batch that was finalized last."""


class Ledger:
    """Tasks and batches.

    Args:
        settings: Sizes and limits.
        policy: Which versions batches need.
        journal: Told of every change.
    """

    def __init__(self, settings: CoordinatorSettings, policy: SyncPolicy, journal: Journal) -> None:
        self.tasks: dict[str, OpenTask] = {}
        self.running: dict[str, OpenTask] = {}
        """Those of ``tasks`` that an explorer is working on."""
        self.batches: dict[str, Batch] = {}
        self.result_in: dict[str, str] = {}
        """Ended tasks of open batches, to their batch."""
        self.counters = Counters()
        self.done = Window("done", settings.dedup_window, journal)
        self.closed = Window("closed", CLOSED_WINDOW, journal)
        self._settings = settings
        self._policy = policy
        self._journal = journal
        self._filling: dict[BatchType, Batch] = {}
        self._waiting: dict[BatchType, deque[Batch]] = {"train": deque(), "eval": deque()}
        self._handed_out: list[Batch] = []
        self._complete: dict[int, Batch] = {}

    def wants_tasks(self) -> bool:
        """Whether more tasks should be read.

        Not while ``max_open_tasks`` are open, unless none of their batches is full: then only more tasks help.
        """
        return len(self.tasks) < self._settings.max_open_tasks or not self._can_go_on()

    def refusal(self, task: Task) -> tuple[Refusal, str] | None:
        """Why the books cannot take this task; None if they can."""
        if task.task_id in self.tasks or task.task_id in self.done:
            return Refusal.DUPLICATE_TASK, f"a task with the id {task.task_id!r} was accepted before"
        if task.batch_size is not None and task.batch_size > MAX_BATCH_TASKS:
            return Refusal.BATCH_TOO_LARGE, f"a batch has {MAX_BATCH_TASKS} tasks at most, not {task.batch_size}"
        if task.batch_id is None:
            return None
        if task.batch_id in self.closed:
            return Refusal.BATCH_CLOSED, f"batch {task.batch_id!r} has ended; name another one"
        batch = self.batches.get(task.batch_id)
        return None if batch is None else self._does_not_fit(task, batch)

    def accept(self, arrived: TaskArrived) -> BatchRecord | None:
        """Takes a task for which there is no ``refusal``. Returns its batch if that is new."""
        task = arrived.task
        batch, is_new = self._batch_of(task)
        self.counters.tasks += 1
        opened = OpenTask(task, batch.batch_id, self.counters.tasks, arrived.origin, arrived.traceparent)
        self.tasks[task.task_id] = opened
        batch.accepted += 1
        batch.enqueue(opened)
        if batch.accepted == batch.expected:
            self.counters.filled += 1
            batch.filled = self.counters.filled
            self._journal.touch(f"batch/{batch.batch_id}")
            self._waiting[batch.batch_type].append(batch)
            if batch.unnamed:
                del self._filling[batch.batch_type]
        self._journal.touch(f"task/{task.task_id}")
        self._journal.touch(BOOKS_KEY)
        return batch.record() if is_new else None

    def admit(self, *, announced: int, newest: int) -> list[BatchRecord]:
        """Starts full batches for which there is room.

        Args:
            announced: The version that explorers are told to serve; -1 before there is any.
            newest: The newest that the trainer has published, be it held or announced: what evaluation needs.
        """
        admitted = []
        while self._waiting["eval"]:
            batch = self._waiting["eval"].popleft()
            batch.min_version = max(0, newest)
            admitted.append(self._admitted(batch))
        open_batches = self.counters.sequence - self.counters.finalized
        for _ in range(min(len(self._waiting["train"]), self._settings.max_inflight_batches - open_batches)):
            batch = self._waiting["train"].popleft()
            self.counters.sequence += 1
            batch.sequence = self.counters.sequence
            batch.min_version = self._policy.version_needed(batch.sequence, announced)
            self._journal.touch(BOOKS_KEY)
            admitted.append(self._admitted(batch))
        if admitted:
            self._handed_out.sort(key=batch_priority)
        return admitted

    def handed_out(self) -> list[Batch]:
        """RUNNING batches with tasks to hand out, the most urgent first."""
        return [batch for batch in self._handed_out if batch.queued]

    def oldest_needed(self) -> int | None:
        """The oldest version that a batch needs which is handed out and not done; None where there is no such batch."""
        return min((batch.min_version for batch in self._handed_out), default=None)

    def next_task(self, batch: Batch, workflows: Collection[str]) -> OpenTask | None:
        """The next task of the batch to hand out to somebody who knows these workflows."""
        task_id = batch.next_in_line(workflows)
        return None if task_id is None else self.tasks[task_id]

    def started(self, task: OpenTask) -> None:
        """The next attempt at the task has begun; it was the first of its workflow in its batch's queue."""
        self.batches[task.batch_id].take(task.task.workflow)
        self.running[task.task.task_id] = task
        self._journal.touch(f"attempt/{task.task.task_id}")

    def stopped(self, task: OpenTask, error: str) -> bool:
        """The running attempt has failed. Returns whether there will be another one."""
        self.running.pop(task.task.task_id, None)
        task.fail(error)
        self._journal.touch(f"attempt/{task.task.task_id}")
        if task.attempts >= self._settings.max_attempts:
            return False
        self.batches[task.batch_id].enqueue(task)
        return True

    def dropped(self, task: OpenTask) -> None:
        """A task that was never tried fails; it was the first of its workflow in its batch's queue."""
        self.batches[task.batch_id].take(task.task.workflow)

    def overdue(self, now: float) -> list[tuple[OpenTask, Attempt]]:
        """Running attempts whose time is up, in the order of their tasks."""
        late = [(t, t.running) for t in self.running.values() if t.running is not None and t.running.deadline <= now]
        return sorted(late, key=lambda found: found[0].order)

    def settle(self, task: OpenTask, result: Result) -> BatchRecord | None:
        """The task has its result. Returns its batch if that was the last one."""
        task_id = task.task.task_id
        del self.tasks[task_id]
        self.running.pop(task_id, None)
        self.done.add(task_id)
        batch = self.batches[task.batch_id]
        batch.results[task_id] = result
        self.result_in[task_id] = batch.batch_id
        self._journal.touch(f"task/{task_id}")
        if task.attempts:
            self._journal.touch(f"attempt/{task_id}")
        self._journal.touch(f"result/{task_id}")
        if len(batch.results) < batch.expected:
            return None
        batch.move(State.FINALIZING)
        self._journal.touch(f"batch/{batch.batch_id}")
        self._handed_out.remove(batch)
        self._complete[batch.number] = batch
        return batch.record()

    def finalize(self) -> Iterator[BatchRecord]:
        """Ends complete batches whose turn has come, in the order of their turns."""
        for batch in sorted(self._complete.values(), key=batch_priority):
            if batch.batch_type == "train":
                if batch.sequence != self.counters.finalized + 1:
                    continue
                self.counters.finalized = batch.sequence
            batch.move(State.FINALIZED)
            yield batch.record()
            self._close(batch)

    def restore(self, batches: list[Batch], tasks: list[OpenTask], counters: Counters) -> None:
        """Takes over the books of a changelog; whatever follows from them is found again."""
        self.counters = counters
        self.batches = {batch.batch_id: batch for batch in sorted(batches, key=lambda b: b.number)}
        self.tasks = {task.task.task_id: task for task in sorted(tasks, key=lambda t: t.order)}
        self.running = {task_id: task for task_id, task in self.tasks.items() if task.running is not None}
        self.result_in = {task_id: batch.batch_id for batch in batches for task_id in batch.results}
        for batch in self.batches.values():
            batch.accepted = len(batch.results)
        for task in self.tasks.values():
            batch = self.batches[task.batch_id]
            batch.accepted += 1
            if task.running is None:
                batch.enqueue(task)
        opened = self.batches.values()
        self._filling = {b.batch_type: b for b in opened if b.unnamed and not b.filled}
        for batch in sorted(opened, key=lambda b: b.filled):
            if batch.filled and batch.state is State.PENDING:
                self._waiting[batch.batch_type].append(batch)
        self._handed_out = sorted((b for b in opened if b.state is State.RUNNING), key=batch_priority)
        self._complete = {b.number: b for b in opened if b.state is State.FINALIZING}

    def _does_not_fit(self, task: Task, batch: Batch) -> tuple[Refusal, str] | None:
        expected = task.batch_size or self._settings.batch_size
        if (batch.batch_type, batch.expected) != (task.batch_type, expected):
            return Refusal.BATCH_MISMATCH, (
                f"batch {batch.batch_id!r} has {batch.expected} {batch.batch_type} tasks, "
                f"this task says {expected} {task.batch_type} tasks"
            )
        if batch.accepted >= batch.expected:
            return Refusal.BATCH_FULL, f"batch {batch.batch_id!r} has its {batch.expected} tasks; name another one"
        return None

    def _can_go_on(self) -> bool:
        return bool(self._handed_out or any(self._waiting.values()))

    def _admitted(self, batch: Batch) -> BatchRecord:
        batch.move(State.RUNNING)
        self._journal.touch(f"batch/{batch.batch_id}")
        self._handed_out.append(batch)
        return batch.record()

    def _batch_of(self, task: Task) -> tuple[Batch, bool]:
        unnamed = task.batch_id is None
        batch = self._filling.get(task.batch_type) if task.batch_id is None else self.batches.get(task.batch_id)
        if batch is not None:
            return batch, False
        self.counters.batches += 1
        batch = Batch(
            batch_id=task.batch_id or self._new_name(task.batch_type),
            batch_type=task.batch_type,
            expected=self._settings.batch_size if unnamed else task.batch_size or self._settings.batch_size,
            number=self.counters.batches,
            unnamed=unnamed,
        )
        self.batches[batch.batch_id] = batch
        if unnamed:
            self._filling[batch.batch_type] = batch
        self._journal.touch(f"batch/{batch.batch_id}")
        return batch, True

    def _new_name(self, batch_type: BatchType) -> str:
        while True:
            self.counters.unnamed += 1
            name = f"{batch_type}-{self.counters.unnamed:06d}"
            if name not in self.batches and name not in self.closed:
                return name

    def _close(self, batch: Batch) -> None:
        del self._complete[batch.number], self.batches[batch.batch_id]
        self.closed.add(batch.batch_id)
        for task_id in batch.results:
            del self.result_in[task_id]
            self._journal.touch(f"result/{task_id}")
        self._journal.touch(f"batch/{batch.batch_id}")
        self._journal.touch(BOOKS_KEY)
