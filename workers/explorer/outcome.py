"""What an attempt yielded, as the records that tell of it. Pure: no clock, no client, no task."""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas import Dispatch, ExperienceGroup, ExperiencePiece, Position, RolloutFinished
from schemas.errors import encodable
from schemas.groups.trainable import Bounds, flaws
from schemas.record import Metrics
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.metrics import RUN_TIME, TASK_TIME, aggregate_run_level_metrics
from trinity_bus.runners.service import WorkflowRaisedError

MAX_ERROR_CHARS = 2000


class UnsendableResultError(TrinityError):
    """A result is no valid record, or is over its size limit."""


class UntrainableSampleError(TrinityError):
    """A workflow gave a sample that no model of this shape can be trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerIdentity:
    explorer: str
    incarnation: str
    model: str


def check_trainable(group: ExperienceGroup, bounds: Bounds) -> None:
    """Refuse samples that could end a training step, or spoil it; see ``schemas.groups.trainable``."""
    found = flaws(group, bounds)
    if found:
        more = f", and {len(found) - 1} other samples are no better" if len(found) > 1 else ""
        raise UntrainableSampleError(f"run {group.run_ids[found[0].sample]}: {found[0].detail}{more}")


def finished(
    order: Dispatch,
    group: ExperienceGroup,
    *,
    experience: Position | None = None,
    pieces: Sequence[ExperiencePiece] = (),
    seconds: float,
    error: str | None = None,
) -> RolloutFinished:
    """Return the result of an attempt that yielded something: completed, or partial where runs are missing.

    ``error`` is the first one, where the workflow told one.
    """
    versions = group.versions[:, 2].tolist()
    steps: dict[int, list[Metrics]] = {}
    for run_id, metrics in zip(group.run_ids.tolist(), group.metrics, strict=True):
        steps.setdefault(run_id, []).append(metrics)
    # Of each run, those of all its steps: what a task tells of its runs is reduced again, by the same suffixes.
    runs = {run_id: aggregate_run_level_metrics(of_run) for run_id, of_run in steps.items()}
    missing = order.repeat_times - len(runs)
    return RolloutFinished(
        explorer=group.explorer,
        incarnation=group.incarnation,
        task_id=group.task_id,
        attempt=group.attempt,
        batch_id=group.batch_id,
        batch_type=group.batch_type,
        status="partial" if missing else "completed",
        completed_runs=len(runs),
        total_runs=order.repeat_times,
        metrics=[{RUN_TIME: seconds, **metrics, TASK_TIME: seconds} for metrics in runs.values()],
        experience=experience,
        samples=len(group),
        version_min=min(versions, default=-1),
        version_max=max(versions, default=-1),
        prompt_tokens=sum(group.prompt_lengths.tolist()),
        response_tokens=len(group.logprobs),
        seconds=seconds,
        error=_missing(len(runs), order.repeat_times, error) if missing else None,
        pieces=list(pieces),
        runs=sorted(runs) if missing else [],
    )


def failed(order: Dispatch, error: BaseException, who: ExplorerIdentity, *, seconds: float) -> RolloutFinished:
    """Return the result of an attempt that broke: a failure with its type and message, never a reward."""
    return RolloutFinished(
        explorer=who.explorer,
        incarnation=who.incarnation,
        task_id=order.task.task_id,
        attempt=order.attempt,
        batch_id=order.batch_id,
        batch_type=order.batch_type,
        status="failed",
        completed_runs=0,
        total_runs=order.repeat_times,
        seconds=seconds,
        error=_text(error)[:MAX_ERROR_CHARS],
    )


def _text(error: BaseException) -> str:
    # That of a workflow carries its own type. What no record can hold is escaped.
    text = str(error) if isinstance(error, WorkflowRaisedError) else f"{type(error).__name__}: {error}"
    return encodable(text)


def _missing(given: int, asked: int, error: str | None) -> str:
    why = "" if error is None else f"; first error: {error}"
    return f"the workflow gave {given} of {asked} runs{why}"[:MAX_ERROR_CHARS]
