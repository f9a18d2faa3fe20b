"""The contract of the mesh: every record's type, its codec, its topics and its version rules.

Light on purpose: msgpack, msgspec, pydantic and numpy. A program that produces tasks needs this and a Kafka client.
"""

from schemas.batch import BatchLifecycleState, BatchRecord, ManifestEntry
from schemas.event import (
    ExplorerHeartbeat,
    ExplorerLeft,
    Position,
    RolloutFinished,
    RunningAttempt,
    StepTrained,
    TrainerHeartbeat,
    WeightsSynced,
)
from schemas.experience import ExperienceGroup, Sample, SampleInput, build_group
from schemas.model_version import Member, ModelVersion
from schemas.record import Record
from schemas.rollout import Cancel, Dispatch
from schemas.task import Message, Sampling, Task

__all__ = [
    "BatchLifecycleState",
    "BatchRecord",
    "Cancel",
    "Dispatch",
    "ExperienceGroup",
    "ExplorerHeartbeat",
    "ExplorerLeft",
    "ManifestEntry",
    "Member",
    "Message",
    "ModelVersion",
    "Position",
    "Record",
    "RolloutFinished",
    "RunningAttempt",
    "Sample",
    "SampleInput",
    "Sampling",
    "StepTrained",
    "Task",
    "TrainerHeartbeat",
    "WeightsSynced",
    "build_group",
]
