"""What an attempt that ended is worth."""

from schemas import ManifestEntry, ResultPart, RolloutFinished, TaskResult
from schemas.record import BatchType
from trinity_bus.coordination.limits import bounded, short_error
from trinity_bus.coordination.tasks import OpenTask, Result
from trinity_bus.rollout.metrics import calculate_task_level_metrics


def problem(event: RolloutFinished, batch_type: BatchType, min_version: int) -> str | None:
    """Why the attempt is no answer to its task; None if it is one.

    Args:
        event: What its explorer says.
        batch_type: Of the task.
        min_version: The oldest version that its batch may be drawn with.
    """
    if event.status == "failed" or event.completed_runs < 1:
        return event.error or "the rollout failed and did not say why"
    if batch_type == "eval":
        return None
    if event.experience is None or event.samples < 1:
        return f"the rollout is {event.status}, but has no experience that could be trained on"
    if event.version_min < min_version:
        return f"drawn with version {event.version_min}, the batch needs {min_version} or newer"
    return None


def answer(event: RolloutFinished, order: int, batch_type: BatchType, traceparent: str | None) -> Result:
    """The result of an attempt without a ``problem``; a partial one says what went wrong first."""
    error = None
    if event.status == "partial":
        error = short_error(event.error or f"{event.completed_runs} of {event.total_runs} runs completed")
    runs = [*event.metrics, {"time/task_execution": event.seconds}]
    return Result(
        order=order,
        entry=ManifestEntry(
            task_id=event.task_id,
            status=event.status,
            parts=[
                ResultPart(
                    attempt=event.attempt,
                    samples=event.samples,
                    position=event.experience if batch_type == "train" else None,
                )
            ],
            error=error,
            version_min=event.version_min,
            version_max=event.version_max,
        ),
        metrics=bounded(calculate_task_level_metrics(runs, batch_type == "eval")),
        traceparent=traceparent,
        failed=False,
    )


def failure(task: OpenTask, error: str) -> Result:
    """The result of a task that will not be tried again. It has no metrics: a failure is not a reward of zero."""
    entry = ManifestEntry(task_id=task.task.task_id, status="failed", error=error)
    return Result(order=task.order, entry=entry, metrics={}, traceparent=None, failed=True)


def told(task: OpenTask, batch_type: BatchType, result: Result, event: RolloutFinished | None, runs: int) -> TaskResult:
    """The result as its record on ``results``.

    Args:
        task: The task that has ended.
        batch_type: Of its batch.
        result: How it ended.
        event: What its attempt said, where one counts.
        runs: How many runs the task was to have.
    """
    entry = result.entry
    return TaskResult(
        task_id=entry.task_id,
        batch_id=task.batch_id,
        batch_type=batch_type,
        status=entry.status,
        completed_runs=0 if event is None else event.completed_runs,
        total_runs=runs,
        parts=entry.parts,
        metrics=result.metrics,
        version_min=entry.version_min,
        version_max=entry.version_max,
        seconds=0.0 if event is None else event.seconds,
        attempts=task.attempts,
        error=entry.error,
    )
