"""Batches on the way from their first task to their manifest.

A task that names a batch joins it; one that names none joins the batch of its type that is being filled. Tasks of a
batch are not dispatched before it is full. An *open* batch, without a number of tasks, is never full and never waits;
of its tasks that have ended only the numbers are kept.

Of a batch, what is expected to take longest is dispatched first, so that nothing long begins last. A part that has lost
an attempt goes before all others. Of a task with several parts of which nothing is known, the first part goes before
what is known, for its answer tells how long the others are, and so do these: who has not answered when others have, is
longer. What is equal goes in the order of acceptance, and so does all of an open batch, where more may always come.

Over-rollout: a batch with a ``min_wait_num`` ends ``wait_after_min_s`` after so many of its tasks are finished, with
what it then has; the others are aborted. So the slowest few decide nothing, and it keeps the order of acceptance.

docs/batches.md shows the states, and when a batch goes from one to another. A batch waits in PENDING until it is full,
and only then takes a place in the order of training: so a batch whose last task never comes holds up nobody but itself.
An open batch, which has no number of tasks, is RUNNING at once and never FINALIZING: it ends when its client aborts it.
"""

import heapq
import math
from bisect import insort
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import field

from schemas import BatchLifecycleState as State
from schemas import BatchRecord
from schemas.batch import readable
from schemas.record import BatchType, Metrics
from trinity_bus.coordination.batches.parts import Part
from trinity_bus.coordination.batches.tasks import OpenTask, Result
from trinity_bus.coordination.limits import bounded
from trinity_bus.coordination.pools import Kind
from trinity_bus.coordination.state.tables import Row
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.metrics import aggregate_eval_metrics, aggregate_metrics

TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.PENDING: frozenset({State.RUNNING, State.FINALIZING, State.ABORTED}),
        State.RUNNING: frozenset({State.FINALIZING, State.ABORTED}),
        State.FINALIZING: frozenset({State.FINALIZED, State.ABORTED}),
        State.FINALIZED: frozenset(),
        State.ABORTED: frozenset(),
    }
)


class IllegalTransitionError(TrinityError, ValueError):
    """A batch cannot go from one state to another."""


def moved(source: State, target: State) -> State:
    """Return the state after a transition; IllegalTransitionError where the table does not hold it."""
    if target not in TRANSITIONS[source]:
        allowed = ", ".join(sorted(TRANSITIONS[source])) or "nothing, it is final"
        raise IllegalTransitionError(f"a batch that is {source} cannot become {target}; only {allowed}")
    return target


MAX_TRACE_LINKS = 128  # of one batch; what OpenTelemetry keeps of a span's links unless told otherwise

NOBODY: Final = ""  # the owner of batches whose tasks name a batch, but no producer
# The owner of batches that are filled with tasks that name neither. No producer can have this name, or the other.
EVERYBODY: Final = "*"

# A part to be dispatched: its rank, order of its task, its index, id of its task.
type Queued = tuple[int, int, int, str]

_FIRST: Final = -(1 << 64)  # a rank that is before all others


def enough(batch_type: BatchType, expected: int | None, over_rollout_ratio: float) -> int | None:
    """How many finished tasks are enough for a batch that does not say so itself, as in the reference; None: all."""
    if batch_type == "eval" or not expected or not over_rollout_ratio:
        return None
    return math.ceil(expected * (1 - over_rollout_ratio))


class Batch(Row):
    """A batch that has not ended."""

    batch_id: str
    batch_type: BatchType = field(name="type")
    expected: int | None  # None: it is open
    number: int  # of its creation, over all batches
    unnamed: bool = False  # whether it is filled with tasks that name no batch
    born: int = 0  # number of the last task that was accepted before it was registered
    min_wait_num: int | None = None
    state: State = State.PENDING
    filled: int = 0  # number in the order of getting full; 0 before
    sequence: int = 0  # place in the order of training; 0 for eval batches, and before RUNNING
    min_version: int = 0
    # ``finished``, ``failed`` and ``aborted`` of an open batch; those of others follow from their results.
    counts: tuple[int, int, int] = (0, 0, 0)
    # Who is served when its tasks are dispatched, and may end it: see coordination.events.batch_commands.
    owner: str = NOBODY

    def __post_init__(self) -> None:
        self.is_open = self.expected is None
        # Tasks that ended by themselves; the failed ones among them; tasks that were aborted.
        self.finished, self.failed, self.aborted = self.counts
        self.open_tasks: dict[str, OpenTask] = {}  # tasks without a result
        self.size = 0  # bytes of them
        # Those among them that were answered when they came, until the batch has its place in training.
        self.contributed: dict[str, OpenTask] = {}
        self.results: dict[str, Result] = {}  # of the others; none are kept of an open batch
        self.queued: dict[Kind, list[Queued]] = {}  # of each kind, a heap of what is to be dispatched
        self.reranked: set[str] = set()  # tasks whose parts in the heaps have got another rank
        self.durations: list[float] = []  # seconds that answered parts took, sorted
        # When its unfinished tasks are aborted, on the machine's own clock; set again by a restart.
        self.cut_at: float | None = None

    @property
    def accepted(self) -> int:
        return self.finished + self.aborted + len(self.open_tasks)

    @property
    def all_ended(self) -> bool:
        return not self.open_tasks and self.accepted == self.expected

    @property
    def has_enough(self) -> bool:
        return self.min_wait_num is not None and self.finished >= self.min_wait_num

    def ends_at(self, finished: int | None) -> None:
        self.min_wait_num = finished
        self.reranked.update(self.open_tasks)

    def move(self, target: State) -> None:
        self.state = moved(self.state, target)

    def count(self, result: Result) -> None:
        if result.entry.status == "aborted":
            self.aborted += 1
        else:
            self.finished += 1
            if result.entry.status == "failed":
                self.failed += 1
        if self.is_open:
            self.counts = (self.finished, self.failed, self.aborted)

    def keep(self, result: Result) -> None:
        self.results[result.entry.task_id] = result
        for seconds in result.elapsed:
            insort(self.durations, seconds)

    def rank(self, task: OpenTask, part: Part) -> int:
        # Of what is queued, the smallest is the next to be dispatched.
        # With over-rollout what begins last is given up: the shortest would be, each time, and none of them trained on.
        if self.is_open or (self.min_wait_num or self.expected) != self.expected:
            return 0
        if part.lost:
            return _FIRST
        if len(task.parts) > 1 and task.is_unknown:
            return _FIRST + (part.index > 0)
        return -task.expected

    def next_queued(self, kinds: Collection[Kind]) -> Queued | None:
        if self.reranked:
            self._rerank()
        heads = [heap[0] for kind, heap in self.queued.items() if kind in kinds]
        return min(heads) if heads else None

    def _rerank(self) -> None:
        # At once for all that more is known of now: this goes through the whole heap.
        for heap in self.queued.values():
            for place, (_, order, index, task_id) in enumerate(heap):
                if task_id in self.reranked:
                    task = self.open_tasks[task_id]
                    heap[place] = self.rank(task, task.parts[index]), order, index, task_id
            heapq.heapify(heap)
        self.reranked.clear()

    def record(
        self, *, reason: str | None = None, with_results: bool = False, detailed_stats: bool = False
    ) -> BatchRecord:
        """Return the batch as others see it; with manifest, metrics and trace links where they are asked for."""
        results = sorted(self.results.values(), key=lambda r: r.order) if with_results else []
        links = dict.fromkeys(r.traceparent for r in results if r.traceparent is not None and r.entry.parts)
        return BatchRecord(
            batch_id=self.batch_id,
            batch_type=self.batch_type,
            state=self.state,
            sequence=self.sequence,
            expected_task_count=self.expected,
            accepted_task_count=self.accepted,
            completed_task_count=self.finished,
            failed_task_count=self.failed,
            aborted_task_count=self.aborted,
            min_wait_num=self.min_wait_num,
            min_version=self.min_version,
            manifest=[r.entry for r in results],
            metrics=self._metrics(results, detailed_stats=detailed_stats) if with_results else {},
            reason=reason,
            trace_links=list(links)[:MAX_TRACE_LINKS],
        )

    def _metrics(self, results: list[Result], *, detailed_stats: bool) -> Metrics:
        # As the reference names them: ``rollout/...`` for train batches, ``eval/<name>/...`` for eval batches.
        of_tasks = [r.metrics for r in results]
        if self.batch_type == "train":
            prefix = "rollout"
            metrics = bounded(aggregate_metrics(of_tasks, prefix))
        else:
            name = readable(self.batch_id)
            prefix = f"eval/{name.partition('/')[2] or name}"
            metrics = bounded(aggregate_eval_metrics(of_tasks, prefix, detailed_stats=detailed_stats))
        metrics[f"{prefix}/finished_task_count"] = float(self.finished)
        if results:
            metrics[f"{prefix}/failed_task_count"] = float(self.failed)
        samples = sum(part.samples for result in results for part in result.entry.parts)
        if samples and self.batch_type == "train":
            metrics["experience_pipeline/experience_count"] = float(samples)
        return metrics
