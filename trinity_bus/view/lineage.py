"""What a step was made of: its samples, the versions that drew them, their traces, and what came of it. Pure.

::

    the step's record on `steps`, its experiences as far as they are left, its version and its checkpoint --> lineage

Plain values alone, so that it is one JSON object.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas import ExperienceGroup, PublishedVersion, ResultPart, StepBegun, StepGroup
from trinity_bus.bus import Received

type Places = Mapping[tuple[int, int], Received[Any]]  # Partition and offset in ``experiences`` to what lies there


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLineage:
    sample: int  # Its place in the task's group
    run: int
    reward: float | None
    tokens: int
    versions: list[int]  # That drew it, the oldest first
    # Why it was not trained on, in one word; empty where it was, or where it is told of all the same
    left_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLineage:
    task_id: str
    once_more: bool  # Whether it is of an earlier batch
    attempts: list[int]
    places: list[str]  # Of its experiences in the log
    traces: list[str]  # Ids of the traces that lead to them
    samples: list[SampleLineage]  # None where experiences are gone, or cannot be read
    count: int  # Of the samples, gone or not

    @property
    def versions(self) -> list[int]:
        return sorted({version for sample in self.samples for version in sample.versions})

    @property
    def left_out(self) -> int:
        return sum(bool(sample.left_out) for sample in self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLineage:
    step: int
    trainer: str
    run: str
    incarnation: str
    model: str
    batch_id: str
    sequence: int
    seed: int
    skipped: str | None
    tasks: list[TaskLineage]
    examples: list[str] = field(default_factory=list)  # Places of demonstrations or preferences
    # Checksum of the version as it was published; None where it was not, or nobody knows any more
    weights: str | None = None
    checkpoint: str | None = None  # Folder; None where it is not kept
    checkpoint_digests: dict[str, str] = field(default_factory=dict)  # Of the files in it
    checkpoint_seal: str | None = None  # Digest of all that it says of itself, the others included


def lineage_of(
    record: StepBegun,
    found: Places,
    *,
    version: PublishedVersion | None = None,
    checkpoint: str | None = None,
    digests: Mapping[str, str] | None = None,
    seal: str | None = None,
) -> StepLineage:
    """Return what a step was made of."""
    shown = [(topic, at) for topic in ("demonstrations", "preferences") for at in getattr(record, topic)]
    same = ("step", "trainer", "run", "incarnation", "model", "batch_id", "sequence", "seed", "skipped")
    return StepLineage(
        **{name: getattr(record, name) for name in same},
        tasks=[
            *(_task(record, group, found, once_more=False) for group in record.groups),
            *(_task(record, group, found, once_more=True) for group in record.replayed),
        ],
        examples=[f"{topic}/{at.partition}@{at.offset}" for topic, at in shown],
        weights=None if version is None else version.checksum,
        checkpoint=checkpoint,
        checkpoint_digests=dict(digests or {}),
        checkpoint_seal=seal or None,
    )


def _task(record: StepBegun, group: StepGroup, found: Places, *, once_more: bool) -> TaskLineage:
    left = {sample: one.reason for one in record.left_out if one.task_id == group.task_id for sample in one.samples}
    received = [_at(part, found) for part in group.parts]
    groups = [one.record for one in received if one is not None and isinstance(one.record, ExperienceGroup)]
    samples: list[SampleLineage] = []
    for each in groups if len(groups) == len(group.parts) else ():
        samples += _samples(each, len(samples), left)
    return TaskLineage(
        task_id=group.task_id,
        once_more=once_more,
        attempts=[part.attempt for part in group.parts],
        places=[f"experiences/{at.partition}@{at.offset}" for part in group.parts if (at := part.position)],
        traces=sorted({one.traceparent.split("-")[1] for one in received if one is not None and one.traceparent}),
        samples=samples,
        count=sum(part.samples for part in group.parts),
    )


def _at(part: ResultPart, found: Places) -> Received[Any] | None:
    return None if part.position is None else found.get((part.position.partition, part.position.offset))


def _samples(group: ExperienceGroup, first: int, left: Mapping[int, str]) -> list[SampleLineage]:
    drawn: list[set[int]] = [set() for _ in range(len(group))]
    for owner, _, version in group.versions.tolist():
        drawn[owner].add(version)
    return [
        SampleLineage(
            sample=place,
            run=sample.run_id,
            reward=sample.reward if math.isfinite(sample.reward) else None,
            tokens=len(sample.tokens),
            versions=sorted(versions),
            left_out=left.get(place, ""),
        )
        for place, (sample, versions) in enumerate(zip(group.samples(), drawn, strict=True), first)
    ]
