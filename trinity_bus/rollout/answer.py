"""What a workflow gave, as the one record of it. Pure.

::

    a runner:      rollouts --encode_answer--> the bytes of an ``ExperienceGroup``, made once; or the attempt's failure
    its explorer:  the bytes --decode_answer--> the same group, once it is known to be one that answers this order

A runner is user code's, so nothing of what it says is taken for true: the explorer decodes the bytes, compares what
they say of themselves with what was asked for, and sends on these very bytes.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from schemas import Dispatch, ExperienceGroup, Rollout, Sampling, build_group
from schemas.codec import decode, encode
from schemas.experience import MAX_METRICS
from schemas.record import Metrics
from trinity_bus.rollout.workflow import WorkflowError, sampling_of_rest

MAX_METRIC_NAME = 200


def encode_answer(
    order: Dispatch, rollouts: Sequence[Rollout], model: str, version: int = -1, asked: Sequence[Sampling] = ()
) -> bytes:
    """Return what a workflow gave as an experience group's bytes.

    ``version`` is the model's when the workflow began, for rollouts that do not say who drew them; -1: nobody knows.
    ``asked``: how the workflow has asked the engine to draw, each way once. Raises what ``stamp`` does, and:

    Raises:
        WorkflowError: It gave nothing, runs that it was not asked for, or more metrics than are sent.
        SchemaError: A run's tokens, logprobs and mask differ in length, or no record can hold it.
        AttributeError, TypeError, ValueError, OverflowError: It is not what a workflow returns.
    """
    if not rollouts:
        _check(order, [], [])
    sampling = None
    if order.batch_type == "train":
        sampling = sampling_of_rest(rollouts, asked)
    else:
        # Nobody trains on these, and they would be most of the record.
        rollouts = [dataclasses.replace(one, kept=None) for one in rollouts]
    # A reward beyond a float32 becomes infinite here, which the explorer refuses; that is no news.
    with np.errstate(over="ignore"):
        group = build_group(
            with_routes_of_all(rollouts),
            run_id_base=order.run_id_base,
            version=version,
            sampling=sampling,
            **_asked(order),
            model=model,
        )
    _check(order, group.run_ids.tolist(), group.metrics)
    return encode(group)


def with_routes_of_all(rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
    """Return rollouts of one group, without routes where some have none: the column is of all samples or of none.

    A sample has none whose last turn comes from an earlier attempt, or from another gateway.
    """
    routed = [one.routes is not None for one in rollouts]
    if all(routed) or not any(routed):
        return rollouts
    return [dataclasses.replace(one, routes=None) for one in rollouts]


def decode_answer(order: Dispatch, answer: bytes, model: str) -> ExperienceGroup:
    """Return the group in a runner's answer; DecodeError, or WorkflowError where it does not answer this order."""
    group = decode(answer, ExperienceGroup)
    for name, asked in {**_asked(order), "model": model}.items():
        if (said := getattr(group, name)) != asked:
            raise WorkflowError(f"the answer is of {name} {said!r:.100}, asked for was {asked!r}")
    _check(order, group.run_ids.tolist(), group.metrics)
    if len(group.metrics) != len(group):
        raise WorkflowError(f"the answer has {len(group)} samples, and metrics of {len(group.metrics)}")
    return group


def _asked(order: Dispatch) -> dict[str, Any]:
    # What a group says of itself that answers an order.
    task = {"task_id": order.task.task_id, "workflow": order.task.workflow}
    return task | {name: getattr(order, name) for name in _SAME}


_SAME = ("attempt", "batch_id", "batch_type", "explorer", "incarnation")


def _check(order: Dispatch, run_ids: Sequence[int], metrics: Sequence[Metrics]) -> None:
    runs = len(set(run_ids))
    if not 0 < runs <= order.repeat_times:
        raise WorkflowError(
            f"workflow {order.task.workflow!r} gave {runs} runs of task {order.task.task_id!r}, "
            f"asked for were {order.repeat_times}"
        )
    first, last = order.run_id_base, order.run_id_base + order.repeat_times - 1
    for run in (min(run_ids), max(run_ids)):
        if not first <= run <= last:
            raise WorkflowError(
                f"workflow {order.task.workflow!r} gave run {run} of task {order.task.task_id!r}, "
                f"asked for were {first} to {last}"
            )
    for i, one in enumerate(metrics):
        if len(one) > MAX_METRICS:
            raise WorkflowError(f"run {i} has {len(one)} metrics, at most {MAX_METRICS} are sent")
        longest = max(map(len, one), default=0)
        if longest > MAX_METRIC_NAME:
            raise WorkflowError(
                f"run {i} has a metric whose name is of {longest} characters, at most {MAX_METRIC_NAME} are sent"
            )
