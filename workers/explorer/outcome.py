"""What an attempt yielded, as the records that tell of it. Pure: no clock, no client, no task."""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas import Dispatch, ExperienceGroup, Position, RolloutFinished
from schemas.experience import SampleInput, build_group
from trinity_bus.rollout import Rollout, WorkflowError
from workers.explorer.runners.errors import WorkflowRaisedError

MAX_ERROR_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who answers."""

    explorer: str
    incarnation: str
    model: str


def check(order: Dispatch, rollouts: Sequence[Rollout]) -> None:
    """Refuse what cannot be an answer.

    Raises:
        WorkflowError: The workflow gave nothing, or more runs than it was asked for.
    """
    if not 0 < len(rollouts) <= order.repeat_times:
        raise WorkflowError(
            f"workflow {order.task.workflow!r} gave {len(rollouts)} runs of task {order.task.task_id!r}, "
            f"asked for were {order.repeat_times}"
        )


def experiences(order: Dispatch, rollouts: Sequence[Rollout], who: Identity) -> ExperienceGroup:
    """The samples of an attempt, for the trainer.

    Raises:
        schemas.errors.SchemaError: A rollout's tokens, logprobs and mask differ in length.
    """
    return build_group(
        [
            SampleInput(
                prompt_token_ids=rollout.prompt_token_ids,
                response_token_ids=rollout.response_token_ids,
                logprobs=rollout.logprobs,
                mask=rollout.mask,
                reward=rollout.reward,
                run_id=order.run_id_base + i,
                versions=rollout.versions,
                finish_reason=rollout.finish_reason,
                metrics=rollout.metrics,
            )
            for i, rollout in enumerate(rollouts)
        ],
        task_id=order.task.task_id,
        attempt=order.attempt,
        batch_id=order.batch_id,
        batch_type=order.batch_type,
        workflow=order.task.workflow,
        model=who.model,
        explorer=who.explorer,
        incarnation=who.incarnation,
    )


def finished(
    order: Dispatch,
    rollouts: Sequence[Rollout],
    who: Identity,
    *,
    experience: Position | None,
    seconds: float,
    error: str | None = None,
) -> RolloutFinished:
    """The result of an attempt that yielded something: completed, or partial where runs are missing.

    Args:
        order: What was asked for.
        rollouts: The runs that were done.
        who: Who did them.
        experience: Where they lie in the log.
        seconds: How long it took.
        error: The first error, where the workflow told one.
    """
    versions = [version for rollout in rollouts for _, version in rollout.versions]
    missing = order.repeat_times - len(rollouts)
    return RolloutFinished(
        explorer=who.explorer,
        incarnation=who.incarnation,
        task_id=order.task.task_id,
        attempt=order.attempt,
        batch_id=order.batch_id,
        batch_type=order.batch_type,
        status="partial" if missing else "completed",
        completed_runs=len(rollouts),
        total_runs=order.repeat_times,
        metrics=[{**rollout.metrics, "time/task_execution": seconds} for rollout in rollouts],
        experience=experience,
        samples=len(rollouts),
        version_min=min(versions, default=-1),
        version_max=max(versions, default=-1),
        prompt_tokens=sum(len(rollout.prompt_token_ids) for rollout in rollouts),
        response_tokens=sum(len(rollout.response_token_ids) for rollout in rollouts),
        seconds=seconds,
        error=_missing(len(rollouts), order.repeat_times, error) if missing else None,
    )


def failed(order: Dispatch, error: BaseException, who: Identity, *, seconds: float) -> RolloutFinished:
    """The result of an attempt that broke: a failure with its type and message, never a reward."""
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
    """An error with its type; that of a workflow carries its own."""
    return str(error) if isinstance(error, WorkflowRaisedError) else f"{type(error).__name__}: {error}"


def _missing(given: int, asked: int, error: str | None) -> str:
    why = "" if error is None else f"; first error: {error}"
    return f"the workflow gave {given} of {asked} runs{why}"[:MAX_ERROR_CHARS]
