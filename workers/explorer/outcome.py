"""What an attempt yielded, as the records that tell of it. Pure: no clock, no client, no task."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas import Dispatch, ExperienceGroup, Position, RolloutFinished
from schemas.experience import SampleInput, build_group
from schemas.trainable import Bounds, flaws
from trinity_bus.errors import TrinityError
from trinity_bus.rollout import Rollout, WorkflowError
from trinity_bus.rollout.metrics import RUN_TIME, TASK_TIME
from trinity_bus.runners.errors import WorkflowRaisedError

MAX_ERROR_CHARS = 2000
MAX_METRICS = 64
"""Metrics of one run: what an experience group holds of each sample."""
MAX_METRIC_NAME = 200


class UnsendableResultError(TrinityError):
    """A result is no valid record, or is over its size limit."""


class UntrainableSampleError(TrinityError):
    """A workflow gave a sample that no model of this shape can be trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerIdentity:
    """Who answers."""

    explorer: str
    incarnation: str
    model: str


def check(order: Dispatch, rollouts: Sequence[Rollout]) -> None:
    """Refuse what cannot be an answer.

    Raises:
        WorkflowError: The workflow gave nothing, runs that it was not asked for, or more metrics than are sent.
    """
    who = f"workflow {order.task.workflow!r}"
    if 0 < sum(rollout.run_id is None for rollout in rollouts) < len(rollouts):
        raise WorkflowError(f"{who} says of some of its rollouts which run they are of, and of others not")
    runs = _runs(order, rollouts)
    if not 0 < len(set(runs)) <= order.repeat_times:
        raise WorkflowError(
            f"{who} gave {len(set(runs))} runs of task {order.task.task_id!r}, asked for were {order.repeat_times}"
        )
    asked = range(order.run_id_base, order.run_id_base + order.repeat_times)
    unasked = next((run for run in runs if run not in asked), None)
    if unasked is not None:
        raise WorkflowError(f"{who} gave run {unasked}, asked for were {asked.start} to {asked.stop - 1}")
    for i, rollout in enumerate(rollouts):
        if len(rollout.metrics) > MAX_METRICS:
            raise WorkflowError(f"run {i} has {len(rollout.metrics)} metrics, at most {MAX_METRICS} are sent")
        longest = max(map(len, rollout.metrics), default=0)
        if longest > MAX_METRIC_NAME:
            raise WorkflowError(
                f"run {i} has a metric whose name is of {longest} characters, at most {MAX_METRIC_NAME} are sent"
            )


def stamped(rollouts: Sequence[Rollout], version: int) -> list[Rollout]:
    """Return the rollouts; those that do not say who drew them are of this version, if there is one."""
    if version < 0:
        return list(rollouts)
    return [one if one.versions else dataclasses.replace(one, versions=[(0, version)]) for one in rollouts]


def _runs(order: Dispatch, rollouts: Sequence[Rollout]) -> list[int]:
    """Return the run of each rollout."""
    return [order.run_id_base + i if one.run_id is None else one.run_id for i, one in enumerate(rollouts)]


def experiences(order: Dispatch, rollouts: Sequence[Rollout], who: ExplorerIdentity, bounds: Bounds) -> ExperienceGroup:
    """Return the samples of an attempt, for the trainer.

    Args:
        order: What was asked for.
        rollouts: Of the runs that were done.
        who: Who did them.
        bounds: Of the model that is trained.

    Raises:
        UntrainableSampleError: One could end a training step, or spoil it; see ``schemas.trainable``.
        schemas.errors.SchemaError: A rollout's tokens, logprobs and mask differ in length.
    """
    # A reward beyond a float32 becomes infinite here, and is refused below; that is no news.
    with np.errstate(over="ignore"):
        group = _group(order, rollouts, who)
    found = flaws(group, bounds)
    if found:
        more = f", and {len(found) - 1} other samples are no better" if len(found) > 1 else ""
        raise UntrainableSampleError(f"run {group.run_ids[found[0].sample]}: {found[0].detail}{more}")
    return group


def _group(order: Dispatch, rollouts: Sequence[Rollout], who: ExplorerIdentity) -> ExperienceGroup:
    return build_group(
        [
            SampleInput(
                prompt_token_ids=rollout.prompt_token_ids,
                response_token_ids=rollout.response_token_ids,
                logprobs=rollout.logprobs,
                mask=rollout.mask,
                reward=rollout.reward,
                run_id=run,
                versions=rollout.versions,
                finish_reason=rollout.finish_reason,
                metrics=rollout.metrics,
            )
            for run, rollout in zip(_runs(order, rollouts), rollouts, strict=True)
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
    who: ExplorerIdentity,
    *,
    experience: Position | None,
    seconds: float,
    error: str | None = None,
) -> RolloutFinished:
    """Return the result of an attempt that yielded something: completed, or partial where runs are missing.

    Args:
        order: What was asked for.
        rollouts: Of the runs that were done.
        who: Who did them.
        experience: Where they lie in the log.
        seconds: How long it took.
        error: The first error, where the workflow told one.
    """
    versions = [version for rollout in rollouts for _, version in rollout.versions]
    last = dict(zip(_runs(order, rollouts), rollouts, strict=True))
    missing = order.repeat_times - len(last)
    return RolloutFinished(
        explorer=who.explorer,
        incarnation=who.incarnation,
        task_id=order.task.task_id,
        attempt=order.attempt,
        batch_id=order.batch_id,
        batch_type=order.batch_type,
        status="partial" if missing else "completed",
        completed_runs=len(last),
        total_runs=order.repeat_times,
        metrics=[{RUN_TIME: seconds, **rollout.metrics, TASK_TIME: seconds} for rollout in last.values()],
        experience=experience,
        samples=len(rollouts),
        version_min=min(versions, default=-1),
        version_max=max(versions, default=-1),
        prompt_tokens=sum(len(rollout.prompt_token_ids) for rollout in rollouts),
        response_tokens=sum(len(rollout.response_token_ids) for rollout in rollouts),
        seconds=seconds,
        error=_missing(len(last), order.repeat_times, error) if missing else None,
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
    """Return an error with its type; that of a workflow carries its own. What no record can hold is escaped."""
    text = str(error) if isinstance(error, WorkflowRaisedError) else f"{type(error).__name__}: {error}"
    return text.encode("utf-8", "backslashreplace").decode()


def _missing(given: int, asked: int, error: str | None) -> str:
    why = "" if error is None else f"; first error: {error}"
    return f"the workflow gave {given} of {asked} runs{why}"[:MAX_ERROR_CHARS]
