"""What was decided and is not committed yet: the content of the next transaction."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from schemas import BatchRecord
from schemas.topics import TASKS
from trinity_bus.bus import Received, Undecodable
from trinity_bus.coordination import Effect, Origin, Write
from workers.coordinator.spans import Spans


@dataclass(slots=True)
class PendingCommit:
    spans: Spans
    effects: list[Effect] = field(default_factory=list)  # in the order of the decisions
    unreadable: list[Received[Any]] = field(default_factory=list)
    # What the machine could not decide upon, and why.
    failed_inputs: list[tuple[Received[Any], str]] = field(default_factory=list)
    originals: dict[Origin, Received[Any]] = field(default_factory=dict)  # tasks as they came
    received: list[Received[Any]] = field(default_factory=list)  # all that it is made of, in the order of the decisions
    ends_batches: bool = False  # whether a manifest is among it

    def take(self, received: Iterable[Received[Any]]) -> tuple[int, int]:
        # How many tasks are among them, and their bytes.
        tasks = task_bytes = 0
        for item in received:
            self.received.append(item)
            if isinstance(item.record, Undecodable):
                self.unreadable.append(item)
            if item.topic is TASKS:
                self.originals[Origin(item.partition, item.offset)] = item
                tasks, task_bytes = tasks + 1, task_bytes + len(item.raw)
        return tasks, task_bytes

    def add(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self.effects.append(effect)
            if isinstance(effect, Write) and isinstance(effect.record, BatchRecord) and effect.record.manifest:
                self.ends_batches = True
