"""Batches on the way from their first task to their manifest.

A task that names a batch joins it; one that names none joins the batch of its type that is being filled. Tasks of a
batch are not handed out before it is full: see :mod:`trinity_bus.coordination.lifecycle`.
"""

import heapq
from collections.abc import Collection
from dataclasses import dataclass, field

from schemas import BatchLifecycleState as State
from schemas import BatchRecord
from schemas.record import BatchType, Metrics
from trinity_bus.coordination.lifecycle import Transition
from trinity_bus.coordination.limits import bounded
from trinity_bus.coordination.tasks import OpenTask, Result
from trinity_bus.rollout.metrics import aggregate_eval_metrics, aggregate_metrics

MAX_TRACE_LINKS = 128
"""Links of one batch; what OpenTelemetry keeps of a span's links unless told otherwise."""


@dataclass(slots=True)
class Batch:
    """One open batch."""

    batch_id: str
    batch_type: BatchType
    expected: int
    number: int
    """Of its creation, over all batches."""
    unnamed: bool
    """Whether it is filled with tasks that name no batch."""
    state: State = State.PENDING
    filled: int = 0
    """Number in the order of getting full; 0 before."""
    sequence: int = 0
    """Place in the order of training; 0 for eval batches, and before RUNNING."""
    min_version: int = 0
    accepted: int = field(default=0, compare=False)
    """Follows from the tasks and the results."""
    results: dict[str, Result] = field(default_factory=dict)
    queued: dict[str, list[tuple[int, str]]] = field(default_factory=dict, compare=False)
    """Of each workflow, a heap of (order, task id) to be handed out; follows from the tasks."""

    def move(self, target: State) -> None:
        """Goes to another state.

        Raises:
            IllegalTransitionError: The lifecycle has no such transition.
        """
        self.state = Transition(self.state, target).target

    def enqueue(self, task: OpenTask) -> None:
        """The task is to be handed out, for the first time or again."""
        heapq.heappush(self.queued.setdefault(task.task.workflow, []), (task.order, task.task.task_id))

    def next_in_line(self, workflows: Collection[str]) -> str | None:
        """The id of the next task to be handed out whose workflow is one of these."""
        heads = [heap[0] for workflow, heap in self.queued.items() if workflow in workflows]
        return min(heads)[1] if heads else None

    def take(self, workflow: str) -> None:
        """The next task of this workflow is handed out or given up."""
        heap = self.queued[workflow]
        heapq.heappop(heap)
        if not heap:
            del self.queued[workflow]

    def record(self, *, reason: str | None = None) -> BatchRecord:
        """The batch as others see it; a FINALIZED one with its manifest, metrics and trace links."""
        results = sorted(self.results.values(), key=lambda r: r.order) if self.state is State.FINALIZED else []
        return BatchRecord(
            batch_id=self.batch_id,
            batch_type=self.batch_type,
            state=self.state,
            sequence=self.sequence,
            expected_task_count=self.expected,
            accepted_task_count=self.accepted,
            completed_task_count=len(self.results),
            failed_task_count=sum(1 for r in self.results.values() if r.failed),
            min_version=self.min_version,
            manifest=[r.entry for r in results],
            metrics=self._metrics(results) if self.state is State.FINALIZED else {},
            reason=reason,
            trace_links=_trace_links(results),
        )

    def _metrics(self, results: list[Result]) -> Metrics:
        """As the reference names them: ``rollout/...`` for train batches, ``eval/<name>/...`` for eval batches."""
        of_tasks = [r.metrics for r in results]
        if self.batch_type == "train":
            prefix = "rollout"
            metrics = bounded(aggregate_metrics(of_tasks, prefix))
        else:
            prefix = f"eval/{self.batch_id.partition('/')[2] or self.batch_id}"
            metrics = bounded(aggregate_eval_metrics(of_tasks, prefix))
        metrics[f"{prefix}/finished_task_count"] = float(len(results))
        metrics[f"{prefix}/failed_task_count"] = float(sum(1 for r in results if r.failed))
        return metrics


def _trace_links(results: list[Result]) -> list[str]:
    links = dict.fromkeys(r.traceparent for r in results if r.traceparent is not None and not r.failed)
    return list(links)[:MAX_TRACE_LINKS]
