"""What a workflow gave, as the one record of it. Pure.

::

    a runner:      rollouts --encode_answer--> the bytes of an ``ExperienceGroup``, made once; or the attempt's failure
    its explorer:  the bytes --decode_answer--> the same group, once it is known to be one that answers this order

A runner is user code's, so nothing of what it says is taken for true: the explorer decodes the bytes, compares what
they say of themselves with what was asked for, and sends on these very bytes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from schemas import Dispatch, ExperienceGroup, Rollout, build_group
from schemas.codec import decode, encode
from schemas.experience import MAX_METRICS
from schemas.record import Metrics
from trinity_bus.rollout.workflow import WorkflowError

MAX_METRIC_NAME = 200


def encode_answer(order: Dispatch, rollouts: Sequence[Rollout], model: str) -> bytes:
    """Return what a workflow gave as an experience group's bytes.

    Args:
        order: What was asked for.
        rollouts: What the workflow returned.
        model: Name of the model that drew them.

    Raises:
        WorkflowError: It gave nothing, more runs than it was asked for, or more metrics than are sent.
        schemas.errors.SchemaError: A run's tokens, logprobs and mask differ in length, or no record can hold it.
        AttributeError, TypeError, ValueError, OverflowError: It is not what a workflow returns.
    """
    _check_runs(order, len(rollouts))
    # A reward beyond a float32 becomes infinite here, which the explorer refuses; that is no news.
    with np.errstate(over="ignore"):
        group = build_group(rollouts, run_id_base=order.run_id_base, **_said_of(order), model=model)
    _check_metrics(group.metrics)
    return encode(group)


def decode_answer(order: Dispatch, answer: bytes, model: str) -> ExperienceGroup:
    """Return the group in a runner's answer.

    Args:
        order: What was asked for.
        answer: What the runner sent.
        model: Name of the model that drew it.

    Raises:
        schemas.errors.DecodeError: It is no group.
        WorkflowError: It is not one that answers this order.
    """
    group = decode(answer, ExperienceGroup)
    for name, asked in {**_said_of(order), "model": model}.items():
        if (said := getattr(group, name)) != asked:
            raise WorkflowError(f"the answer is of {name} {said!r:.100}, asked for was {asked!r}")
    _check_runs(order, len(group.metrics))
    _check_metrics(group.metrics)
    first = order.run_id_base
    if group.run_ids.tolist() != list(range(first, first + len(group.metrics))):
        raise WorkflowError(f"the answer's runs are not numbered from {first}, each with its metrics")
    return group


def _said_of(order: Dispatch) -> dict[str, Any]:
    """Return what the group says of itself that answers an order."""
    return {
        "task_id": order.task.task_id,
        "attempt": order.attempt,
        "batch_id": order.batch_id,
        "batch_type": order.batch_type,
        "workflow": order.task.workflow,
        "explorer": order.explorer,
        "incarnation": order.incarnation,
    }


def _check_runs(order: Dispatch, runs: int) -> None:
    if not 0 < runs <= order.repeat_times:
        raise WorkflowError(
            f"workflow {order.task.workflow!r} gave {runs} runs of task {order.task.task_id!r}, "
            f"asked for were {order.repeat_times}"
        )


def _check_metrics(metrics: Sequence[Metrics]) -> None:
    for i, one in enumerate(metrics):
        if len(one) > MAX_METRICS:
            raise WorkflowError(f"run {i} has {len(one)} metrics, at most {MAX_METRICS} are sent")
        longest = max(map(len, one), default=0)
        if longest > MAX_METRIC_NAME:
            raise WorkflowError(
                f"run {i} has a metric whose name is of {longest} characters, at most {MAX_METRIC_NAME} are sent"
            )
