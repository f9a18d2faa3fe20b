"""The whole log of a run that is over, and the invariants that it must keep. Reads topics as any client would."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas import BatchLifecycleState as State
from schemas import BatchRecord, ExperienceGroup, Position, RolloutFinished, Task
from schemas.command import BatchResult
from schemas.topic import Topic
from schemas.topics import (
    BATCHES,
    COORDINATOR_STATE,
    DEAD_LETTERS,
    EXPERIENCES,
    EXPLORER_EVENTS,
    RESULTS,
    ROLLOUTS,
    TASKS,
)
from tests.support.mesh.records import record_of
from trinity_bus.bus import Bus, Received
from trinity_bus.coordination import TRANSITIONS, staleness

OF_WORK = {"batch", "tasks", "ended", "assigned", "progress", "answer", "results", "finalizers"}
"""Entries of the changelog that are about what has not ended."""

type Where = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a finalized batch came to, as far as it does not depend on when and where its tasks ran."""

    batch_type: str
    tasks: dict[str, str]
    """Task id to status."""
    samples: dict[str, list[tuple[int, tuple[int, ...], float]]]
    """Of each task of a train batch: run id, tokens and reward of each sample."""
    metrics: dict[str, float]


@dataclass(slots=True)
class MeshLog:
    """Every record of every topic, each partition in its order."""

    tasks: list[Received[Any]] = field(default_factory=list)
    rollouts: list[Received[Any]] = field(default_factory=list)
    experiences: list[Received[Any]] = field(default_factory=list)
    events: list[Received[Any]] = field(default_factory=list)
    """Of explorers."""
    results: list[Received[Any]] = field(default_factory=list)
    batches: list[Received[Any]] = field(default_factory=list)
    dead_letters: list[Received[Any]] = field(default_factory=list)
    changelog: list[Received[Any]] = field(default_factory=list)

    @classmethod
    async def read(cls, bus: Bus) -> "MeshLog":
        topics = (TASKS, ROLLOUTS, EXPERIENCES, EXPLORER_EVENTS, RESULTS, BATCHES, DEAD_LETTERS, COORDINATOR_STATE)
        return cls(*[await _all_of(bus, topic) for topic in topics])

    # -- what is on it -----------------------------------------------------------------------------------------------

    @property
    def finalized(self) -> list[BatchRecord]:
        return [record_of(item) for item in self.batches if record_of(item).state is State.FINALIZED]

    @property
    def sent(self) -> Counter[str]:
        return Counter(item.record.task_id for item in self.tasks if isinstance(item.record, Task))

    def contents(self) -> dict[str, Content]:
        groups = {(item.partition, item.offset): record_of(item) for item in self.experiences}
        return {batch.batch_id: _content(batch, groups) for batch in self.finalized}

    # -- the invariants ----------------------------------------------------------------------------------------------

    def check(self, *, max_staleness: int, max_inflight_batches: int) -> None:
        assert not self.dead_letters, [(item.raw, item.headers) for item in self.dead_letters]
        self.check_transitions(max_inflight_batches)
        self.check_order_of_training()
        self.check_manifests(max_staleness)
        self.check_every_task_counts_once()
        self.check_changelog()

    def check_transitions(self, max_inflight_batches: int) -> None:
        """Batches make only the steps of the lifecycle; so many train batches are open at once."""
        states: dict[str, State] = {}
        for item in self.batches:
            batch: BatchRecord = record_of(item)
            before = states.get(batch.batch_id)
            legal = batch.state is State.PENDING if before is None else batch.state in TRANSITIONS[before]
            assert legal, f"batch {batch.batch_id} went from {before} to {batch.state}"
            states[batch.batch_id] = batch.state
        working: set[str] = set()
        for item in self.batches:
            batch = record_of(item)
            if batch.batch_type == "train" and batch.expected_task_count is not None:
                is_open = batch.state in (State.RUNNING, State.FINALIZING)
                (working.add if is_open else working.discard)(batch.batch_id)
            assert len(working) <= max_inflight_batches, f"open at once: {sorted(working)}"

    def check_order_of_training(self) -> None:
        """Sequences of finalized train batches are 1, 2, 3 ..."""
        sequences = [batch.sequence for batch in self.finalized if batch.batch_type == "train"]
        assert sequences == list(range(1, len(sequences) + 1))

    def check_manifests(self, max_staleness: int) -> None:
        """Each names experiences that are there, by the attempts that it says, each once, and none too old."""
        groups: dict[Where, ExperienceGroup] = {(i.partition, i.offset): record_of(i) for i in self.experiences}
        named: Counter[Where] = Counter()
        for batch in self.finalized:
            for entry in batch.manifest:
                assert entry.status != "failed", f"{entry.task_id}: {entry.error}"
                for part in entry.parts:
                    if batch.batch_type == "eval":
                        assert part.position is None
                        continue
                    group = groups[_where(part.position)]
                    named[_where(part.position)] += 1
                    expected = (entry.task_id, part.attempt, batch.batch_id, part.samples)
                    assert (group.task_id, group.attempt, group.batch_id, len(group)) == expected
                    versions = [int(version) for _, _, version in group.versions]
                    assert staleness(batch.sequence, min(versions)) <= max_staleness
                    assert entry.version_min <= min(versions)
                    assert max(versions) <= entry.version_max
        assert all(count == 1 for count in named.values()), "an experience is in two manifests"

    def check_every_task_counts_once(self) -> None:
        """Each task that was sent has one result, and is in one manifest, with that result."""
        once = Counter(dict.fromkeys(self.sent, 1))
        assert Counter(record_of(item).task_id for item in self.results) == once
        results = {result.task_id: result for result in map(record_of, self.results)}
        assert Counter(entry.task_id for batch in self.finalized for entry in batch.manifest) == once
        for batch in self.finalized:
            for entry in batch.manifest:
                result = results[entry.task_id]
                assert (result.batch_id, result.status, result.parts) == (batch.batch_id, entry.status, entry.parts)

    def check_replies(self, told: Mapping[str, BatchResult]) -> None:
        """What clients were told of a batch is what its record says."""
        records = {batch.batch_id: batch for batch in self.finalized}
        for batch_id, result in told.items():
            record = records[batch_id]
            assert (result.state, result.batch_type) == (record.state, record.batch_type)
            assert (result.finished_task_count, result.metrics) == (record.completed_task_count, record.metrics)

    def check_changelog(self) -> None:
        """After all work is done, no task and no batch is left in the coordinator's state."""
        kept: dict[str | None, bytes] = {}
        for item in self.changelog:
            if item.is_null:
                kept.pop(item.key, None)
            else:
                kept[item.key] = item.raw
        left = {str(key).partition("/")[0] for key in kept} & OF_WORK
        assert not left, f"the changelog still holds {sorted(left)}"

    # -- what crashes cost -------------------------------------------------------------------------------------------

    def repeated(self) -> list[RolloutFinished]:
        """Trajectories whose result was durable, and that had to be generated again (as verl's RFC 7579 counts them).

        Not among them are those whose explorer was killed between its experiences and its result.
        """
        manifests = [entry for batch in self.finalized for entry in batch.manifest]
        counted = {(entry.task_id, part.attempt) for entry in manifests for part in entry.parts}
        durable = {(group.task_id, group.attempt) for group in map(record_of, self.experiences)}
        events = [item.record for item in self.events if isinstance(item.record, RolloutFinished)]
        told = {(event.task_id, event.attempt): event for event in events if event.status == "completed"}
        return [event for attempt, event in told.items() if attempt in durable - counted]


def _where(position: Position | None) -> Where:
    assert position is not None
    return position.partition, position.offset


def _content(batch: BatchRecord, groups: dict[Where, ExperienceGroup]) -> Content:
    samples = {}
    for entry in batch.manifest:
        if batch.batch_type == "train":
            samples[entry.task_id] = [
                (sample.run_id, tuple(sample.tokens.tolist()), sample.reward)
                for part in entry.parts
                for sample in groups[_where(part.position)].samples()
            ]
    return Content(
        batch_type=batch.batch_type,
        tasks={entry.task_id: entry.status for entry in batch.manifest},
        samples=samples,
        metrics={name: value for name, value in batch.metrics.items() if "time/" not in name},
    )


async def _all_of(bus: Bus, topic: Topic) -> list[Received[Any]]:
    async with bus.reader(topic, start="beginning") as reader:
        # A commit is answered a moment before readers of each partition see what it commits.
        return [received async for received in reader.replay(written=True)]
