"""What the coordinator's state machine is told: a task came, an event came, time went by."""

from msgspec import Struct

from schemas import (
    AbortBatch,
    CancelTasks,
    Contribute,
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
from schemas.command import CommandError
from schemas.record import Metrics

type Event = (
    ExplorerHeartbeat | ExplorerLeft | RolloutFinished | TrainerHeartbeat | StepTrained | VersionRefused | WeightsSynced
)


class Origin(Struct, array_like=True, frozen=True):
    partition: int
    offset: int


class TaskArrived(Struct, frozen=True):
    task: Task
    origin: Origin
    # W3C context of the sender; every dispatch of the task is its child, after a restart too.
    traceparent: str | None = None


class EventArrived(Struct, frozen=True):
    """May come late, twice, or from an incarnation that is over."""

    event: Event
    traceparent: str | None = None


class Tick(Struct, frozen=True):
    """Nothing came for a while; time-outs are due."""


class Examined(Struct, frozen=True):
    attempt: int  # that they say they are of
    workflow: str
    runs: list[Metrics]  # of each run


class Uncountable(Struct, frozen=True):
    error: CommandError
    detail: str


type Finding = Examined | Uncountable


class ContributionArrived(Struct, frozen=True):
    command: Contribute
    found: Finding
    traceparent: str | None = None


type BatchRequest = SubmitBatch | FinalizeBatch | AbortBatch | CancelTasks | SkipBatch
type Asked = BatchRequest | PublishVersion | RollBack | FinalizeUpgrade
type Request = Asked | Contribute


class CommandArrived(Struct, frozen=True):
    command: Asked
    traceparent: str | None = None  # W3C context of the client; the answer carries it
    operator: bool = False  # whether it was read where only operators write: then it may be about anybody's batch


type Input = TaskArrived | EventArrived | CommandArrived | ContributionArrived | Tick
