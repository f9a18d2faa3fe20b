"""What was decided and is not committed yet: the content of the next transaction."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from schemas import BatchLifecycleState
from schemas.topics import TASKS
from trinity_bus.bus import Received, Undecodable
from trinity_bus.coordination import Effect, Observe, Origin, PublishBatch, RejectTask
from workers.coordinator.spans import Spans


@dataclass(slots=True)
class PendingCommit:
    """Grows until a transaction takes it."""

    spans: Spans
    effects: list[Effect] = field(default_factory=list)
    """In the order of the decisions."""
    unreadable: list[Received[Any]] = field(default_factory=list)
    upsetting: list[tuple[Received[Any], str]] = field(default_factory=list)
    """What the machine could not decide upon, and why."""
    originals: dict[Origin, Received[Any]] = field(default_factory=dict)
    """Tasks as they came."""
    task_bytes: int = 0
    """Of them."""
    received: list[Received[Any]] = field(default_factory=list)
    """All that it is made of, in the order of the decisions."""
    signals: int = 0
    """Commands and events that it is made of."""
    since: float | None = None
    """When the first records came, by the clock of whoever reads."""

    is_awaited: bool = False
    """Whether somebody waits for any of it: an explorer for orders, a client for an answer."""

    ends_batches: bool = False
    """Whether a manifest is among it."""

    @property
    def tasks(self) -> int:
        """That it is made of."""
        return len(self.originals)

    def take(self, received: Iterable[Received[Any]], now: float) -> None:
        """Take records that are decided upon now."""
        for item in received:
            if self.since is None:
                self.since = now
            self.received.append(item)
            if isinstance(item.record, Undecodable):
                self.unreadable.append(item)
            if item.topic is TASKS:
                self.originals[Origin(item.partition, item.offset)] = item
                self.task_bytes += len(item.raw)
            else:
                self.signals += 1

    def add(self, effects: Iterable[Effect]) -> None:
        """Take what was decided upon them."""
        for effect in effects:
            self.effects.append(effect)
            self.is_awaited = self.is_awaited or _is_awaited(effect)
            self.ends_batches = self.ends_batches or (isinstance(effect, PublishBatch) and bool(effect.record.manifest))


def _is_awaited(effect: Effect) -> bool:
    match effect:
        case PublishBatch(record=batch):
            return batch.state is not BatchLifecycleState.PENDING
        case Observe() | RejectTask():
            return False
    return True
