"""Records of explorers and trainers that are not there, or not whole."""

import secrets
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from schemas import (
    Dispatch,
    ExperienceGroup,
    Member,
    ModelVersion,
    Position,
    RolloutFinished,
    Sampling,
    StepTrained,
    TrainerHeartbeat,
    WeightsSynced,
)
from schemas.experience import Rollout
from schemas.groups.grouping import build_group
from trinity_bus.weights.transport import Method

NOWHERE: Final = ("127.0.0.1", 1)


def completed(order: Dispatch, *, version: int, seconds: float, offset: int = 0, **more: Any) -> RolloutFinished:
    """Return the answer to an order all of whose runs are done, with tokens of one version."""
    runs = order.repeat_times
    own: dict[str, Any] = {
        "explorer": order.explorer,
        "incarnation": order.incarnation,
        "task_id": order.task.task_id,
        "attempt": order.attempt,
        "batch_id": order.batch_id,
        "batch_type": "train",
        "status": "completed",
        **dict.fromkeys(("completed_runs", "total_runs", "samples"), runs),
        **dict.fromkeys(("version_min", "version_max"), version),
        "metrics": [{"reward": 1.0}],
        "experience": Position(partition=0, offset=offset),
        "seconds": seconds,
    }
    return RolloutFinished(**own | more)


def step_trained(version: int, incarnation: str, address: tuple[str, int] = NOWHERE, **more: Any) -> StepTrained:
    """Return the event of a step whose version is published."""
    own = {"step": version, "version": version, "publish": True, "checksum": f"{version:064x}"}
    return StepTrained(incarnation=incarnation, **{**_trainer(address), **own, **more})


def trainer_beat(version: int, incarnation: str, address: tuple[str, int] = NOWHERE, **more: Any) -> TrainerHeartbeat:
    own = {"state": "ready", "step": max(version, 0), "version": version}
    return TrainerHeartbeat(incarnation=incarnation, **{**_trainer(address), **own, **more})


def _trainer(address: tuple[str, int]) -> dict[str, Any]:
    return {"trainer": "trainer-0", "model": "policy", "master_address": address[0], "master_port": address[1]}


def synced(version: ModelVersion, explorer: str, incarnation: str) -> WeightsSynced:
    """Return an explorer's answer that it serves a version."""
    return WeightsSynced(
        explorer=explorer,
        incarnation=incarnation,
        model=version.model,
        version=version.version,
        epoch=version.epoch,
        ok=True,
        checksum=version.checksum,
    )


def named_group(task_id: str, batch_id: str = "batch-0", **more: Any) -> dict[str, Any]:
    """Return the fields of a group that say whose it is."""
    nobody = {"workflow": "math", "model": "policy", "explorer": "explorer-0", "incarnation": "a"}
    return {"task_id": task_id, "attempt": 1, "batch_id": batch_id, "batch_type": "train", **nobody, **more}


def groups_of(
    rollouts: Sequence[Sequence[Rollout]], version: int = 0, sampling: Sampling | None = None
) -> list[ExperienceGroup]:
    """Return samples, those of each task together, as an explorer would send them."""
    return [
        build_group(own, version=version, sampling=sampling, **named_group(f"task-{n}"))
        for n, own in enumerate(rollouts)
    ]


def equal_samples(task_id: str, prompt: int, tokens: Any, logprobs: Any, rewards: Any) -> ExperienceGroup:
    """Return a group of samples of one length, given the tokens of all and the log-probabilities of all responses."""
    samples = len(rewards)
    return ExperienceGroup(
        **named_group(task_id),
        tokens=tokens.astype(np.int32),
        lengths=np.full(samples, len(tokens) // samples, np.int32),
        prompt_lengths=np.full(samples, prompt, np.int32),
        logprobs=logprobs.astype(np.float32),
        mask_bits=np.packbits(np.ones(len(logprobs), np.bool_)),
        rewards=rewards,
        run_ids=np.arange(samples, dtype=np.int32),
        versions=np.stack([np.arange(samples), np.zeros(samples), np.zeros(samples)], axis=1).astype(np.int32),
    )


def announce(
    version: int,
    checksum: str,
    address: tuple[str, int],
    method: Method,
    *explorers: str,
    epoch: int = 1,
    incarnation: str = "life",
) -> ModelVersion:
    """Return the announcement of a staged version, without a coordinator."""
    return ModelVersion(
        model="policy",
        version=version,
        step=version,
        method=method,
        epoch=epoch,
        members=[Member(explorer=name, incarnation=incarnation, rank=rank) for rank, name in enumerate(explorers, 1)],
        trainer="trainer-0",
        trainer_incarnation="bench",
        master_address=address[0],
        master_port=address[1],
        checksum=checksum,
        secret=secrets.token_hex(32),
    )
