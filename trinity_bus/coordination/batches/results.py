"""What attempts that ended are worth, and what tasks that ended came to."""

from msgspec import structs

from schemas import ManifestEntry, ResultPart, RolloutFinished, TaskResult
from schemas.batch import TaskStatus
from schemas.record import BatchType, Metrics
from trinity_bus.coordination.batches.parts import Part, PartAnswer
from trinity_bus.coordination.batches.tasks import OpenTask, Result
from trinity_bus.coordination.limits import bounded, short_error
from trinity_bus.rollout.metrics import TASK_TIME, calculate_task_level_metrics


def problem(
    event: RolloutFinished, batch_type: BatchType, min_version: int, *, accept_partial: bool, max_pieces: int
) -> str | None:
    """Why the attempt is no answer to its part; None if it is one.

    ``accept_partial``: whether the runs of an attempt that broke off count. ``max_pieces``: records that its
    experiences may be in.
    """
    if event.status == "failed" or event.completed_runs < 1:
        return event.error or "the rollout failed and did not say why"
    if event.status == "partial" and not accept_partial:
        return event.error or f"{event.completed_runs} of {event.total_runs} runs completed"
    if batch_type == "eval":
        return None
    if (event.experience is None and not event.pieces) or event.samples < 1:
        return f"the rollout is {event.status}, but has no experience that could be trained on"
    return _contradiction(event, min_version, max_pieces)


def _contradiction(event: RolloutFinished, min_version: int, max_pieces: int) -> str | None:
    if event.pieces and (event.experience is not None or event.samples != sum(p.samples for p in event.pieces)):
        return f"the rollout has {event.samples} samples, and its pieces are others"
    if len(event.pieces) > max_pieces:
        return (
            f"its experiences are in {len(event.pieces)} records, and a part of a task of this batch may have "
            f"{max_pieces}: send smaller batches or groups"
        )
    if event.version_min < min_version:
        return f"drawn with version {event.version_min}, the batch needs {min_version} or newer"
    return None


def runs_done(event: RolloutFinished, part: Part) -> list[int]:
    """Return which runs of a part an attempt that broke off has done; none where it does not say it, or not truly."""
    runs = sorted(set(event.runs))
    inside = runs and part.run_id_base <= runs[0] and runs[-1] < part.run_id_base + part.runs
    return runs if inside and len(runs) == event.completed_runs < part.runs else []


def answer(
    event: RolloutFinished,
    part: Part,
    batch_type: BatchType,
    elapsed: float | None,
    traceparent: str | None,
    *,
    error: str | None,
) -> PartAnswer:
    """Return the answer of a part, from an attempt without a ``problem``; ``error``: why it has not all of its runs."""
    return PartAnswer(
        parts=_stored(event, batch_type),
        completed_runs=part.runs if error is None else min(event.completed_runs, part.runs),
        metrics=[*event.metrics, {TASK_TIME: event.seconds}],
        version_min=event.version_min,
        version_max=event.version_max,
        seconds=event.seconds,
        elapsed=elapsed,
        error=error,
        explorer=event.explorer,
        traceparent=traceparent,
    )


def _stored(event: RolloutFinished, batch_type: BatchType) -> list[ResultPart]:
    # Of an eval batch one without a position.
    if batch_type == "train" and event.pieces:
        return [
            ResultPart(attempt=event.attempt, samples=piece.samples, position=piece.position) for piece in event.pieces
        ]
    position = event.experience if batch_type == "train" else None
    return [ResultPart(attempt=event.attempt, samples=event.samples, position=position)]


def joined(task: OpenTask, batch_type: BatchType, reason: str | None = None) -> Result:
    """Return the result of a task with an answered part. ``reason``: why its other parts will not be waited for."""
    answers = task.answers
    errors = [answer.error for answer in answers if answer.error is not None]
    whole = len(answers) == len(task.parts) and not errors
    error = None if whole else task.left.first_error or next(iter(errors), None) or reason
    first = answers[0]
    runs = first.metrics if len(answers) == 1 else [metrics for answer in answers for metrics in answer.metrics]
    entry = ManifestEntry(
        task_id=task.task_id,
        status="completed" if whole else "partial",
        parts=[part for answer in answers for part in answer.parts],
        error=None if error is None else short_error(error),
        version_min=min([answer.version_min for answer in answers]),
        version_max=max([answer.version_max for answer in answers]),
    )
    return Result(
        order=task.order,
        entry=entry,
        metrics=bounded(calculate_task_level_metrics(runs, batch_type == "eval")),
        traceparent=first.traceparent,
        elapsed=[answer.elapsed for answer in answers if answer.elapsed is not None],
    )


def failure(task: OpenTask, error: str) -> Result:
    """Return the result of a task that will not be tried again.

    It has no metrics but the time that attempts at its parts took: a failure is not a reward of zero.
    """
    tried = sum(part.lost > 0 for part in task.parts)
    return _nothing(task, "failed", error, {TASK_TIME: task.left.lost_s / tried} if task.left.lost_s else {})


def unfinished(task: OpenTask, batch_type: BatchType, reason: str, *, keep_partial: bool) -> Result:
    if keep_partial and task.answers:
        return joined(task, batch_type, reason)
    return _nothing(task, "aborted", reason, {})


def record(task: OpenTask, batch_type: BatchType, result: Result) -> TaskResult:
    counted = task.answers if result.entry.parts else []
    return TaskResult(
        **structs.asdict(result.entry),
        batch_id=task.batch_id,
        batch_type=batch_type,
        completed_runs=sum([answer.completed_runs for answer in counted]),
        total_runs=task.total_runs,
        metrics=result.metrics,
        seconds=sum([answer.seconds for answer in counted]),
        attempts=task.attempts,
    )


def _nothing(task: OpenTask, status: TaskStatus, error: str, metrics: Metrics) -> Result:
    entry = ManifestEntry(task_id=task.task_id, status=status, error=short_error(error))
    return Result(task.order, entry, metrics)
