"""The books: every task that was accepted and has not ended, every batch that has not ended, and what has lately ended.

A task id is on the books from acceptance to result, and remembered for ``dedup_window`` further tasks; the id of a
batch likewise, and for a shorter time what became of it. Nothing else is kept of what has ended: the log has it.

Entries of the changelog. A task that is accepted, handed out once and answered shares all of its entries with others:

====================================  ==================================================================================
``level``                             what the state may hold; see ``coordination.state.codec``
``books``, ``sync``                   the counters, and which weights are served
``explorer/<name>``                   an explorer that is, or was lately, in the mesh
``batch/<id>``                        a batch that has not ended
``tasks/<n>``, ``ended/<n>``          accepted tasks, and which of them have ended; see ``coordination.state.memory``
``assigned/<explorer>``               its running attempts
``progress/<task id>``                what attempts that have ended left behind, from the first one on
``answer/<part>/<task id>``           the answer of a part, of a task with several or of one that was contributed
``results/<n>/<batch id>``            results, until the batch ends
``finalizers/<batch id>``             who waits for its end
``done/<n>``, ``closed/<n>``          ids of ended tasks and batches that are remembered
``lengths/<n>``                       how long responses were, by what their tasks ask for
``outcomes/<n>``, ``replies/<n>``     what became of batches, and what commands were answered
====================================  ==================================================================================
"""

import math
from collections.abc import Iterable

from schemas import BatchLifecycleState as State
from schemas import BatchRecord, SubmitBatch, Task
from schemas.record import BatchType
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination import pools
from trinity_bus.coordination.batches.accounts import Counters, Shares, Usage
from trinity_bus.coordination.batches.admission import Admission
from trinity_bus.coordination.batches.batch import EVERYBODY, NOBODY, Batch, enough
from trinity_bus.coordination.batches.dispatch_queue import DispatchQueue
from trinity_bus.coordination.batches.parts import AVERAGE, Attempt, AttemptKey, Part, PartAnswer
from trinity_bus.coordination.batches.task_rules import TaskRules, sender
from trinity_bus.coordination.batches.tasks import OpenTask, Progress, Result, content_of
from trinity_bus.coordination.effects import RejectionReason
from trinity_bus.coordination.inputs import TaskArrived
from trinity_bus.coordination.limits import BATCH_SHARE
from trinity_bus.coordination.pools import Kind
from trinity_bus.coordination.state.memory import Averages, ResultPages, TaskPages, Window
from trinity_bus.coordination.state.store import StateStore
from trinity_bus.coordination.state.tables import Single, Table
from trinity_bus.coordination.sync_policy import SyncPolicy

CLOSED_WINDOW = 10_000  # ids of ended batches that are remembered
_MOST_TOKENS = 1 << 24  # that a response is believed to have
_MOST_RANKED_AGAIN = 1024
LENGTHS_KEPT = 1 << 16  # answers whose lengths are remembered: 15 MB of memory, 0.6 MB of changelog


class Ledger:
    def __init__(self, settings: CoordinatorSettings, policy: SyncPolicy, store: StateStore) -> None:
        self.tasks: dict[str, OpenTask] = {}
        self.running: dict[AttemptKey, Attempt] = {}  # of all tasks, in the order in which they began
        self._soonest = math.inf  # no attempt is overdue before
        self.batches: Table[Batch] = Table("batch", Batch, store)
        self.handed_out: dict[int, Batch] = {}  # RUNNING batches that are not open, by number
        self.complete: dict[int, Batch] = {}  # FINALIZING batches, by number
        self.counters = Counters()
        Single("books", self.counters, store)
        self.queue = DispatchQueue()
        self._max_batch_bytes = settings.max_open_bytes // BATCH_SHARE
        self._rules = TaskRules(settings)
        self.shares = Shares(self.counters, "turns")  # attempts that run, of each producer
        self.usage = Usage()
        self.admission = Admission(
            settings.max_inflight_batches, policy, self.counters, max_unfilled_bytes=settings.max_open_bytes
        )
        self.pages = TaskPages(store)
        self._results = ResultPages(store)
        self._progress: Table[Progress] = Table("progress", Progress, store)
        # Of tasks with several parts, by ``_answer_name``.
        self._answers: Table[PartAnswer] = Table("answer", PartAnswer, store)
        self.done = Window("done", settings.dedup_window, store)
        self.closed = Window("closed", CLOSED_WINDOW, store)
        # Tokens of a run, by the content of its task.
        self._lengths = Averages("lengths", LENGTHS_KEPT, store)
        self._settings = settings
        self._policy = policy
        self._codec = store.codec

    def wants_tasks(self) -> bool:
        """Whether more tasks should be read: not while too many are open in batches that can go on.

        Tasks of batches that are not full do not count, because only more tasks help them; ``overflow`` bounds them.
        """
        return self.usage.has_room(self._settings.max_open_tasks, self._settings.max_open_bytes)

    def knows(self, task_id: str) -> bool:
        return task_id in self.tasks or task_id in self.done

    def refusal(self, task: Task) -> tuple[RejectionReason, str] | None:
        if self.knows(task.task_id):
            return RejectionReason.DUPLICATE_TASK, f"a task with the id {task.task_id!r} was accepted before"
        batch = None if task.batch_id is None else self.batches.get(task.batch_id)
        if batch is None and task.batch_id is not None and task.batch_id in self.closed:
            return RejectionReason.BATCH_CLOSED, f"batch {task.batch_id!r} has ended; name another one"
        return self._rules.refusal(task, batch, self.usage.of(sender(task, batch)))

    def accept(self, arrived: TaskArrived, answer: PartAnswer | None = None) -> Batch | None:
        """Take a task without ``refusal``; return its batch if that is new. ``answer``: of what nobody is to run."""
        task = arrived.task
        batch, is_new = self._batch_of(task)
        self.counters.tasks += 1
        kind = pools.kind_of(task, self._settings.model)
        estimate, weight = self._expected(task, kind) if answer is None else (0, AVERAGE)
        opened = OpenTask(
            batch_id=batch.batch_id,
            order=self.counters.tasks,
            origin=arrived.origin,
            traceparent=arrived.traceparent,
            runs=self._rules.runs_of(task),
            per_part=self._settings.max_repeat_times_per_runner if answer is None else None,
            task=task,
            estimate=estimate,
            weight=weight,
        )
        opened.kind = kind
        packed = self._codec.encode(opened)
        opened.page, opened.size = self.pages.add(opened.order, task.task_id, packed), len(packed)
        self.tasks[task.task_id] = opened
        if answer is not None:
            opened.answer(opened.parts[0], answer)
            self.answered(opened, 0, answer)
        self._join(opened, batch)
        if answer is None:
            for part in opened.parts:
                self.queue.enqueue(batch, opened, part)
        if batch.is_open:
            self.usage.tasks.add(1, opened.size)
        else:
            if batch.unnamed and batch.size >= self._max_batch_bytes:
                # Nobody could give it up: it is full now, with fewer tasks.
                batch.expected = batch.accepted
                batch.ends_at(enough(batch.batch_type, batch.expected, self._settings.over_rollout_ratio))
            if self.admission.grew(batch):
                self._filled(batch)
        return batch if is_new else None

    def register(self, wanted: SubmitBatch) -> Batch:
        owner = wanted.producer or wanted.client
        batch = self._register(wanted.batch_id, wanted.batch_type, wanted.expected_task_count, owner)
        # An evaluation waits for all, as in the reference: of fewer tasks, it is another one.
        if wanted.min_wait_num is not None and batch.expected and batch.batch_type == "train":
            batch.ends_at(min(wanted.min_wait_num, batch.expected))
        return batch

    def admit(self, *, announced: int, newest: int) -> list[BatchRecord]:
        admitted = self.admission.admit(announced=announced, newest=newest)
        records = []
        for batch in admitted:
            batch.move(State.RUNNING)
            self.handed_out[batch.number] = batch
            self.queue.join(batch)
            records.append(batch.record())
            if batch.all_ended:
                records.append(self.completed(batch))
        return records

    def oldest_needed(self) -> int | None:
        """Return the oldest version that explorers are kept at, for a batch that is dispatched and not done.

        An evaluation is to be of one version, under any style; with ``fixed`` each batch counts.
        """
        if self._policy.style == "fixed":
            return min((batch.min_version for batch in self.handed_out.values()), default=None)
        evaluations = (batch for batch in self.handed_out.values() if batch.batch_type == "eval")
        return min((batch.min_version for batch in evaluations if self._is_at_work(batch)), default=None)

    def newest_drawn_for(self) -> int:
        batches = {self.tasks[attempt.task_id].batch_id for attempt in self.running.values()}
        return max((self.batches[batch_id].min_version for batch_id in batches), default=0)

    def needing_more_than(self, version: int) -> list[Batch]:
        return [batch for batch in self.handed_out.values() if batch.min_version > version]

    def completed(self, batch: Batch) -> BatchRecord:
        """Note that the batch waits for nothing but its turn."""
        batch.move(State.FINALIZING)
        self.handed_out.pop(batch.number, None)
        self.complete[batch.number] = batch
        self.queue.leave(batch)
        return batch.record()

    def finish_task(self, task: OpenTask, result: Result) -> Batch:
        """Note that the task, of which nothing is running or queued any more, has its result. Return its batch."""
        task_id = task.task_id
        batch = self.batches[task.batch_id]
        del self.tasks[task_id]
        del batch.open_tasks[task_id]
        batch.contributed.pop(task_id, None)
        batch.size -= task.size
        self.usage.add(task.producer, -1, -task.size)
        self.pages.remove(task.page, task_id)
        self.done.add(task_id)
        if self._progress.pop(task_id, None) is not None:
            for part in task.parts:
                self._answers.pop(_answer_name(task_id, part.index), None)
        batch.count(result)
        self.admission.shrank(batch)
        if batch.filled or batch.is_open:
            self.usage.tasks.add(-1, -task.size)
        if not batch.is_open:
            batch.keep(result)
            packed = self._codec.encode(result)
            self._results.add(batch.batch_id, packed)
            if batch.filled:
                self.usage.results.add(1, len(packed))
        return batch

    def progressed(self, task: OpenTask, *lost_at: Part) -> None:
        """Note that an attempt at the task has ended, and the task has not; where, if without an answer."""
        self._progress[task.task_id] = task.lose(lost_at)

    def answered(self, task: OpenTask, index: int, answer: PartAnswer, *lost_at: Part) -> None:
        """Note that a part of the task is answered, and the task goes on; and where runs of it were lost."""
        self.progressed(task, *lost_at)
        self._answers[_answer_name(task.task_id, index)] = answer

    def note_length(self, task: OpenTask, tokens: int, runs: int) -> None:
        """Learn from the responses of some runs how long those of the task are, now and when it comes again."""
        if tokens and self._settings.longest_first:
            content = content_of(task.task, task.kind)
            self._lengths.add(content, min(max(1, tokens // runs), _MOST_TOKENS))
            batch = self.batches[task.batch_id]
            # A heap is gone through as a whole, which takes longer than a large one's order is worth.
            is_small = sum(map(len, batch.queued.values())) <= _MOST_RANKED_AGAIN
            if is_small and task.is_unknown and any(part.queued for part in task.parts):
                task.left.expected = self._lengths.get(content)
                batch.reranked.add(task.task_id)

    def finalized(self, batch: Batch) -> None:
        batch.move(State.FINALIZED)
        self.admission.finalized(batch)
        self._close(batch)

    def aborted(self, batch: Batch) -> None:
        """Take a batch that is ABORTED, and none of whose tasks is open any more, off the books."""
        if batch.is_open and batch.batch_type == "train" and batch.finished and not batch.aborted:
            self.counters.drained += 1
        for moved_up in self.admission.aborted(batch):
            self.queue.moved(moved_up)
        self._close(batch)

    def run(self, attempt: Attempt, owner: str) -> None:
        self.running[attempt.key] = attempt
        self._soonest = min(self._soonest, attempt.deadline)
        self.shares.take(owner)

    def overdue(self, now: float) -> list[Attempt]:
        """Return the attempts whose time is over, each once."""
        if now < self._soonest:
            return []
        # There may be as many as there are slots.
        found = [attempt for attempt in self.running.values() if attempt.deadline <= now]
        self._soonest = min((one.deadline for one in self.running.values() if one.deadline > now), default=math.inf)
        return self.in_order(found)

    def in_order(self, attempts: Iterable[Attempt]) -> list[Attempt]:
        return sorted(attempts, key=lambda attempt: (self.tasks[attempt.task_id].order, attempt.number))

    def rebuild(self, running: Iterable[Attempt]) -> None:
        self._rebuild_tasks(running)
        self.batches.sort(key=lambda batch_id: self.batches[batch_id].number)
        for batch_id in self._results.rebuild():
            batch = self.batches[batch_id]
            for item in self._results.of(batch_id):
                result = self._codec.decode(Result, item)
                batch.count(result)
                batch.keep(result)
        for task in self.tasks.values():
            batch = self.batches[task.batch_id]
            self._join(task, batch)
            for part in task.parts:
                if part.queued:
                    self.queue.enqueue(batch, task, part)
        for batch in self.batches.values():
            if batch.filled or batch.is_open:
                self._filled(batch)
        self.handed_out = {b.number: b for b in self.batches.values() if b.state is State.RUNNING and not b.is_open}
        self.complete = {b.number: b for b in self.batches.values() if b.state is State.FINALIZING}
        self.admission.restore(self.batches.values())
        self.done.rebuild()
        self.closed.rebuild()
        self._lengths.rebuild()

    def _is_at_work(self, batch: Batch) -> bool:
        # Whether anything of a batch is queued or running in the pool of the model that is trained.
        return any(pool == pools.OWN for pool, _ in batch.queued) or any(
            task.kind[0] == pools.OWN and any(part.running for part in task.parts) for task in batch.open_tasks.values()
        )

    def _rebuild_tasks(self, running: Iterable[Attempt]) -> None:
        self.pages.rebuild(self._open_again)
        for task_id, progress in self._progress.items():
            self.tasks[task_id].take_progress(progress)
        for name, answer in self._answers.items():
            index, _, task_id = name.partition("/")
            task = self.tasks[task_id]
            task.answer(task.parts[int(index)], answer)
        for attempt in running:
            task = self.tasks[attempt.task_id]
            task.resume(attempt)
            self.run(attempt, self.batches[task.batch_id].owner)
        self.tasks = dict(sorted(self.tasks.items(), key=lambda found: found[1].order))

    def _open_again(self, page: str, item: bytes) -> str:
        task = self._codec.decode(OpenTask, item)
        task.page, task.size, task.kind = page, len(item), pools.kind_of(task.task, self._settings.model)
        self.tasks[task.task_id] = task
        return task.task_id

    def _join(self, task: OpenTask, batch: Batch) -> None:
        task.producer = sender(task.task, batch)
        batch.open_tasks[task.task_id] = task
        batch.size += task.size
        if not task.parts_left:
            batch.contributed[task.task_id] = task
        self.usage.add(task.producer, 1, task.size)

    def _expected(self, task: Task, kind: Kind) -> tuple[int, int]:
        # Tokens of a run, and the weight of an attempt. Without the setting all are alike.
        if not self._settings.longest_first:
            return 0, AVERAGE
        mean = self._lengths.mean
        tokens = self._lengths.get(content_of(task, kind))
        return (tokens, max(1, AVERAGE * tokens // mean)) if tokens else (mean, 0)

    def _filled(self, batch: Batch) -> None:
        # It needs no more tasks to go on.
        self.usage.tasks.add(len(batch.open_tasks), batch.size)
        if not batch.is_open:
            self.usage.results.add(len(batch.results), self._results.size(batch.batch_id))

    def _batch_of(self, task: Task) -> tuple[Batch, bool]:
        if task.batch_id is None:
            batch = self.admission.filling.get(task.batch_type)
        else:
            batch = self.batches.get(task.batch_id)
        if batch is not None:
            return batch, False
        unnamed = task.batch_id is None
        batch_id = task.batch_id or self._new_name(task.batch_type)
        owner = task.producer or (EVERYBODY if unnamed else NOBODY)
        return self._register(batch_id, task.batch_type, self._rules.size_of(task), owner, unnamed=unnamed), True

    def _register(
        self, batch_id: str, batch_type: BatchType, expected: int | None, owner: str, *, unnamed: bool = False
    ) -> Batch:
        self.counters.batches += 1
        batch = Batch(
            batch_id=batch_id,
            batch_type=batch_type,
            expected=expected,
            number=self.counters.batches,
            unnamed=unnamed,
            owner=owner,
            born=self.counters.tasks,
            min_wait_num=enough(batch_type, expected, self._settings.over_rollout_ratio),
        )
        self.batches[batch_id] = batch
        self.admission.created(batch)
        return batch

    def _new_name(self, batch_type: BatchType) -> str:
        while True:
            self.counters.unnamed += 1
            name = f"{batch_type}-{self.counters.unnamed:06d}"
            if name not in self.batches and name not in self.closed:
                return name

    def _close(self, batch: Batch) -> None:
        if batch.filled:
            self.usage.results.add(-len(batch.results), -self._results.size(batch.batch_id))
        self.handed_out.pop(batch.number, None)
        self.complete.pop(batch.number, None)
        self.queue.leave(batch)
        del self.batches[batch.batch_id]
        self.closed.add(batch.batch_id)
        self._results.remove(batch.batch_id)


def _answer_name(task_id: str, index: int) -> str:
    return f"{index}/{task_id}"
