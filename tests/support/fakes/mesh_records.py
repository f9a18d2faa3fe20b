"""Records that services of a mesh would have written, with what a test is not about filled in."""

from typing import Any

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    CoordinatorHeartbeat,
    Dispatch,
    ExplorerHeartbeat,
    ManifestEntry,
    Position,
    PublishedVersion,
    ResultPart,
    RolloutFinished,
    StepTrained,
    Task,
    TaskResult,
    TrainerHeartbeat,
    WeightsSynced,
)

_TRAINER: dict[str, Any] = {
    "trainer": "trainer-0", "incarnation": "t", "model": "policy", "master_address": "127.0.0.1", "master_port": 1,
}  # fmt: skip


def dispatch(task_id: str = "t", **changes: Any) -> Dispatch:
    own: dict[str, Any] = {
        "explorer": "explorer-0",
        "incarnation": "life",
        "task": Task(task_id=task_id, workflow="math", prompt="1"),
    }
    of_batch: dict[str, Any] = {"batch_id": "b", "batch_type": "train", "attempt": 2, "repeat_times": 2, "timeout_s": 1}
    return Dispatch(**own | of_batch | changes)


def step_trained(step: int = 1, **changes: Any) -> StepTrained:
    own: dict[str, Any] = {"step": step, "version": step, "publish": True, "checksum": "c" * 64}
    return StepTrained(**_TRAINER | own | changes)


def trainer_beat(**changes: Any) -> TrainerHeartbeat:
    return TrainerHeartbeat(**_TRAINER | {"state": "ready", "step": 1, "version": 1} | changes)


def coordinator_beat(**changes: Any) -> CoordinatorHeartbeat:
    counts: dict[str, Any] = dict.fromkeys(("open_batches", "open_tasks", "running_attempts"), 0)
    limits: dict[str, Any] = dict.fromkeys(("max_timeout_s", "attempts_per_task", "dynamic_timeout_s"), 1)
    return CoordinatorHeartbeat(**{"coordinator": "c", "incarnation": "i"} | counts | limits | changes)


def explorer_beat(name: str = "explorer-0", **changes: Any) -> ExplorerHeartbeat:
    return ExplorerHeartbeat(**{"explorer": name, "incarnation": "a", "state": "ready", "slots": 8} | changes)


def batch(batch_id: str, state: BatchLifecycleState = BatchLifecycleState.FINALIZED, **changes: Any) -> BatchRecord:
    own: dict[str, Any] = {"batch_id": batch_id, "batch_type": "train", "state": state, "sequence": 1}
    return BatchRecord(**own | changes)


def finalized(sequence: int, **changes: Any) -> BatchRecord:
    named: dict[str, Any] = {"batch_id": f"batch-{sequence}", "sequence": sequence}
    return batch(**named | changes)


def rollout_finished(task_id: str, **changes: Any) -> RolloutFinished:
    own: dict[str, Any] = {"explorer": "explorer-0", "incarnation": "a", "task_id": task_id, "attempt": 1}
    of_batch: dict[str, Any] = {"batch_id": "b", "batch_type": "train", "status": "completed"}
    return RolloutFinished(**own | of_batch | dict.fromkeys(("completed_runs", "total_runs"), 1) | changes)


def published_version(version: int, **changes: Any) -> PublishedVersion:
    own: dict[str, Any] = {"model": "policy", "version": version, "step": version, "method": "gloo"}
    by = {"trainer": "trainer-0", "trainer_incarnation": "t", "checksum": "c" * 64}
    return PublishedVersion(**own | by | changes)


def part(offset: int, samples: int = 4, *, partition: int = 0, attempt: int = 1) -> ResultPart:
    """Samples of an attempt, in the record at an offset of ``experiences``."""
    return ResultPart(attempt=attempt, samples=samples, position=Position(partition=partition, offset=offset))


def entry(task_id: str, *parts: ResultPart) -> ManifestEntry:
    """A task of a manifest; one without parts has failed."""
    return ManifestEntry(task_id=task_id, status="completed" if parts else "failed", parts=list(parts))


def task_result(task_id: str, **changes: Any) -> TaskResult:
    own: dict[str, Any] = {"task_id": task_id, "batch_id": "b", "batch_type": "train", "status": "completed"}
    return TaskResult(**own | dict.fromkeys(("completed_runs", "total_runs", "attempts"), 1) | changes)


def weights_synced(name: str, version: int, **changes: Any) -> WeightsSynced:
    own: dict[str, Any] = {
        "explorer": name,
        "incarnation": "a",
        "model": "policy",
        "version": version,
        "epoch": 1,
        "ok": True,
    }
    return WeightsSynced(**own | changes)
