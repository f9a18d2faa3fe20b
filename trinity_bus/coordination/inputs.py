"""What the coordinator's state machine is told: a task came, an event came, time went by."""

from dataclasses import dataclass

from schemas import (
    AbortBatch,
    CancelTasks,
    ExplorerHeartbeat,
    ExplorerLeft,
    FinalizeBatch,
    FinalizeUpgrade,
    PublishVersion,
    RollBack,
    RolloutFinished,
    SkipBatch,
    StepTrained,
    SubmitBatch,
    Task,
    TrainerHeartbeat,
    VersionRefused,
    WeightsSynced,
)

type Event = (
    ExplorerHeartbeat | ExplorerLeft | RolloutFinished | TrainerHeartbeat | StepTrained | VersionRefused | WeightsSynced
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a task lies in the ``tasks`` topic."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class TaskArrived:
    """A task was read."""

    task: Task
    origin: Origin
    traceparent: str | None = None
    """W3C context of whoever sent it; every dispatch of the task is its child, after a restart too."""


@dataclass(frozen=True, slots=True)
class EventArrived:
    """A worker said that something happened. May come late, twice, or from an incarnation that is over."""

    event: Event
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing came for a while; time-outs are due."""


type BatchRequest = SubmitBatch | FinalizeBatch | AbortBatch | CancelTasks | SkipBatch
type Request = BatchRequest | PublishVersion | RollBack | FinalizeUpgrade


@dataclass(frozen=True, slots=True)
class CommandArrived:
    """A client asks for something."""

    command: Request
    traceparent: str | None = None
    """W3C context of the client; the answer carries it."""
    operator: bool = False
    """Whether it was read where only operators write: then it may be about anybody's batch."""


type Input = TaskArrived | EventArrived | CommandArrived | Tick
