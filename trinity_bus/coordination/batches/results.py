"""What attempts that ended are worth, and what tasks that ended came to."""

from collections.abc import Iterator

from schemas import Position, RolloutFinished, TaskResult
from schemas.batch import TaskStatus
from schemas.record import BatchType, Metrics
from trinity_bus.coordination.batches.parts import Part, PartAnswer, StoredPart
from trinity_bus.coordination.batches.tasks import OpenTask, Result
from trinity_bus.coordination.limits import bounded, short_error
from trinity_bus.rollout.metrics import TASK_TIME, calculate_task_level_metrics


def problem(
    event: RolloutFinished, batch_type: BatchType, min_version: int, *, accept_partial: bool, max_pieces: int
) -> str | None:
    """Why the attempt is no answer to its part; None if it is one.

    Args:
        min_version: The oldest version that its batch may be sampled with.
        accept_partial: Whether the runs of an attempt that broke off count.
        max_pieces: Records that its experiences may be in.
    """
    if event.status == "failed" or event.completed_runs < 1:
        return event.error or "the rollout failed and did not say why"
    if event.status == "partial" and not accept_partial:
        return event.error or f"{event.completed_runs} of {event.total_runs} runs completed"
    if batch_type == "eval":
        return None
    missing = _missing(event, max_pieces)
    if missing is None and event.version_min < min_version:
        return f"drawn with version {event.version_min}, the batch needs {min_version} or newer"
    return missing


def _missing(event: RolloutFinished, max_pieces: int) -> str | None:
    # Why there is nothing of an attempt that could be trained on.
    if (event.experience is None and not event.pieces) or event.samples < 1:
        return f"the rollout is {event.status}, but has no experience that could be trained on"
    if event.pieces and (event.experience is not None or event.samples != sum(p.samples for p in event.pieces)):
        return f"the rollout has {event.samples} samples, and its pieces are others"
    if len(event.pieces) > max_pieces:
        return (
            f"its experiences are in {len(event.pieces)} records, and a part of a task of this batch may have "
            f"{max_pieces}: send smaller batches or groups"
        )
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
    whole: bool,
) -> PartAnswer:
    """Return the answer of a part, from an attempt without a ``problem``; whether it has all of the part's runs."""
    error = None
    if not whole:
        error = short_error(event.error or f"{event.completed_runs} of {event.total_runs} runs completed")
    first, *more = _stored(event, batch_type)
    return PartAnswer(
        part=first,
        completed_runs=part.runs if whole else min(event.completed_runs, part.runs),
        whole=whole,
        metrics=[*event.metrics, {TASK_TIME: event.seconds}],
        version_min=event.version_min,
        version_max=event.version_max,
        seconds=event.seconds,
        elapsed=elapsed,
        error=error,
        explorer=event.explorer,
        traceparent=traceparent,
        more=more,
    )


def _stored(event: RolloutFinished, batch_type: BatchType) -> list[StoredPart]:
    # Of an eval batch one without a place.
    if batch_type == "eval":
        return [StoredPart(event.attempt, event.samples, None)]
    if event.experience is not None:
        return [StoredPart(event.attempt, event.samples, _place(event.experience))]
    return [StoredPart(event.attempt, piece.samples, _place(piece.position)) for piece in event.pieces]


def _place(position: Position) -> tuple[int, int]:
    return position.partition, position.offset


def joined(task: OpenTask, batch_type: BatchType, reason: str | None = None) -> Result:
    """Return the result of a task of which at least one part is answered.

    ``reason``: why its other parts will not be waited for, where that is so.
    """
    answers = task.answers
    whole = len(answers) == len(task.parts) and all(answer.whole for answer in answers)
    error = None if whole else task.left.first_error or next(_errors(answers), None) or reason
    first = answers[0]
    runs = first.metrics if len(answers) == 1 else [metrics for answer in answers for metrics in answer.metrics]
    return Result(
        order=task.accepted.order,
        task_id=task.task_id,
        status="completed" if whole else "partial",
        parts=[part for answer in answers for part in answer.parts],
        error=None if error is None else short_error(error),
        version_min=min([answer.version_min for answer in answers]),
        version_max=max([answer.version_max for answer in answers]),
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
    """Return the result of a task that is ended before all its parts are answered."""
    if keep_partial and task.answers:
        return joined(task, batch_type, reason)
    return _nothing(task, "aborted", reason, {})


def record(task: OpenTask, batch_type: BatchType, result: Result) -> TaskResult:
    counted = task.answers if result.parts else []
    return TaskResult(
        task_id=result.task_id,
        batch_id=task.batch_id,
        batch_type=batch_type,
        status=result.status,
        completed_runs=sum(answer.completed_runs for answer in counted),
        total_runs=task.total_runs,
        parts=[part.record for part in result.parts],
        metrics=result.metrics,
        version_min=result.version_min,
        version_max=result.version_max,
        seconds=sum(answer.seconds for answer in counted),
        attempts=task.attempts,
        error=result.error,
    )


def _nothing(task: OpenTask, status: TaskStatus, error: str, metrics: Metrics) -> Result:
    return Result(
        order=task.accepted.order,
        task_id=task.task_id,
        status=status,
        parts=[],
        error=short_error(error),
        version_min=-1,
        version_max=-1,
        metrics=metrics,
        traceparent=None,
        elapsed=[],
    )


def _errors(answers: list[PartAnswer]) -> Iterator[str]:
    return (answer.error for answer in answers if answer.error is not None)
