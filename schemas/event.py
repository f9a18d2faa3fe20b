"""Events: what workers say happened, keyed by the sender.

The coordinator is their main reader. An event is a fact, never a request, except that a heartbeat's ``slots`` are an
offer of capacity, and that ``VersionWanted`` is answered by the trainer. All times are seconds since the Unix epoch by
the sender's clock and only for people to read; nothing is decided by them.
"""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta
from pydantic import Field

from schemas.experience import MAX_PIECES, MAX_SAMPLES
from schemas.fields.free_form import MAX_ITEMS
from schemas.fields.items import AtLeastOne, DrawnBy, Item, Name, Number
from schemas.record import (
    MAX_MIB,
    BatchType,
    Count,
    Identifier,
    Metrics,
    PlainMap,
    Port,
    Positive,
    Record,
    Rollback,
    Seconds,
    SkippedBatches,
    Time,
    Version,
    VersionOrNone,
)
from schemas.task import MAX_REPEAT_TIMES

MAX_RUNNING = 16_384  # of one explorer
MAX_RUNNERS = 1024  # likewise
MAX_WORKFLOWS = 4096  # likewise

MAX_ABILITIES = 64  # likewise
MAX_ADDRESS_CHARS = 300
MAX_ENGINE_MEMBERS = 256  # servers behind one explorer
MAX_UNSERVED = 64  # pools without an explorer that a coordinator names

MAX_TOLD_SETTINGS = 1000  # of one service
MAX_SETTING_CHARS = 300  # of the value of one of them; more is cut

MAX_PACE_S = 64.0
MISSED = 3  # heartbeats missing, where the coordinator has set the pace, before their sender is taken to be gone

type Pause = Annotated[float, Field(ge=0, le=MAX_PACE_S, allow_inf_nan=False)]
type Follows = Literal["trainer", "none"]
type ExplorerState = Literal["starting", "ready", "syncing", "draining"]
type RolloutStatus = Literal["completed", "partial", "failed"]
type RunnerLifeState = Literal["starting", "idle", "busy", "stopping"]


# What a service was started with, ``section.name`` to value as TOML writes it (empty: none), without secrets. For
# people; in the first heartbeat of an incarnation alone.
type ToldSettings = Annotated[
    dict[
        Annotated[str, Field(max_length=100)],
        Annotated[str, Field(max_length=MAX_SETTING_CHARS)],
    ],
    Field(max_length=MAX_TOLD_SETTINGS),
]


class Position(Item, frozen=True, kw_only=True):
    """Where an experience record lies in the log."""

    partition: Number
    offset: Number


class ExperiencePiece(Item, frozen=True, kw_only=True):
    """One record of a group that is too large for one."""

    samples: AtLeastOne
    position: Position


class RunningAttempt(Item, frozen=True, kw_only=True):
    """One attempt that an explorer is working on, as told in its heartbeat."""

    task_id: Name
    attempt: AtLeastOne
    # the first turn that it has completed, in ``turns``; absent where it has completed none
    turns: Position | None = None


class UnservedPool(Item, frozen=True, kw_only=True):
    """A pool that tasks ask for, and no live explorer serves."""

    pool: Name
    parts: AtLeastOne  # parts of tasks that wait for one


class EngineMember(Item, frozen=True, kw_only=True):
    """One of several servers that are an explorer's engine."""

    address: Annotated[str, Meta(max_length=MAX_ADDRESS_CHARS)]  # ``host:port``
    state: Literal["serving", "behind", "gone"]  # it is asked; is there with other weights; is not there
    model_version: DrawnBy = -1  # of the weights that it has, or had; -1: of none that was announced


class ExplorerHeartbeat(Record):
    """An explorer lives, has this much room, and serves this model version. The first one is how it joins."""

    SCHEMA: ClassVar[str] = "event.explorer_heartbeat"

    explorer: Identifier
    incarnation: Identifier
    state: ExplorerState
    slots: Positive
    """How many rollouts it runs at once."""
    running: Annotated[list[RunningAttempt], Field(max_length=MAX_RUNNING)] = Field(default_factory=list)
    model_version: VersionOrNone = -1
    """The version it serves; -1 before it serves any."""
    workflows: Annotated[list[Identifier], Field(max_length=MAX_WORKFLOWS)] = Field(default_factory=list)
    """The workflows that its registry knows."""
    tokens_generated: Count = 0
    """Since the start of this incarnation."""
    sent_at: Time = 0.0
    model: Identifier | None = None
    """The model that it serves. Absent: the one that is trained."""
    pool: Identifier | None = None
    """The pool whose tasks it answers. Absent: that of the model that is trained."""
    follows: Follows = "trainer"
    """Whose weights it serves: the trainer's versions, or a checkpoint that stays as it is."""
    abilities: Annotated[list[Identifier], Field(max_length=MAX_ABILITIES)] = Field(default_factory=list)
    """What its engine can do, such as ``logprobs`` or ``tools``."""
    max_model_len: Count = 0
    """Longest prompt plus response, in tokens; 0: not told."""
    address: Annotated[str, Field(max_length=MAX_ADDRESS_CHARS)] = ""
    """Where it answers requests that come by no topic, ``host:port``; empty: nowhere."""
    address_proof: Annotated[str, Field(max_length=64)] = ""
    """That it answers there, for those who have the same ``explorer.http_key``."""
    pace_s: Pause | None = None
    """The least time between two heartbeats that tell nothing new, as the coordinator has set it (``SetPace``); 0:
    it has set none. Absent: the sender knows nothing of this."""
    settings: ToldSettings = Field(default_factory=dict)
    http_requests: Count = 0
    """Requests that came by no topic and are under way: of gateways, and of explorers of other pools."""
    lane: Count | None = None
    """The partition of ``rollouts`` that it reads. Absent: that of its name, of those that the topic is made with."""
    members: Annotated[list[EngineMember], Field(max_length=MAX_ENGINE_MEMBERS)] = Field(default_factory=list)
    """The servers that it stands for, where there are several."""

    def silent_after_s(self, timeout_s: float) -> float:
        # How long its sender may be silent before it counts as gone; ``timeout_s`` where no pace is set.
        return max(timeout_s, MISSED * (self.pace_s or 0.0))


class RunnerState(Record):
    """One runner, a process that runs workflows, as seen by its explorer."""

    SCHEMA: ClassVar[str] = "runner_state"

    runner: Identifier
    """``<explorer>/<number>``; a runner that replaces another has its number. ``<explorer>/extra-<serial>`` is one that
    has been replaced and finishes what it has, or that runs one attempt alone after a runner has died."""
    state: RunnerLifeState
    pid: Count
    running: Annotated[list[RunningAttempt], Field(max_length=MAX_RUNNING)] = Field(default_factory=list)
    completed: Count = 0
    """Attempts that it has ended since it started."""
    restarts: Count = 0
    """How many runners of this number were replaced."""
    rss_mib: Annotated[float, Field(ge=0, le=MAX_MIB, allow_inf_nan=False)] = 0.0
    values: Annotated[list[PlainMap], Field(max_length=1024)] = Field(default_factory=list)
    """What is known of each attempt in ``running``: ``workflow_id`` (``batch/task/run``), ``model_version``,
    ``begin_time``, ``running_time``, and whatever its workflow has set. Of an idle runner, of the attempt that ended
    last, with its ``terminate_time``."""


class RunnersReport(Record):
    """The runners of one explorer. Sent now and then, for people to look at."""

    SCHEMA: ClassVar[str] = "event.runners"

    explorer: Identifier
    incarnation: Identifier
    runners: Annotated[list[RunnerState], Field(max_length=MAX_RUNNERS)]
    sent_at: Time = 0.0


class CoordinatorHeartbeat(Record):
    """A coordinator lives, and these are its figures. Nothing is decided by it."""

    SCHEMA: ClassVar[str] = "event.coordinator_heartbeat"

    coordinator: Identifier
    incarnation: Identifier
    open_batches: Count
    open_tasks: Count
    running_attempts: Count
    max_timeout_s: Seconds
    """Limit of one attempt at a task that names none."""
    attempts_per_task: Count
    """Attempts at a task, or part of one, before it fails; times ``max_timeout_s`` it is the longest it may take."""
    dynamic_timeout_s: Seconds
    """Limit of an attempt that starts now, see ``trinity_bus.coordination``."""
    wait_after_min_s: Seconds = 30.0
    """How long a wait for some of many tasks goes on when there are enough."""
    sent_at: Time = 0.0
    unserved: Annotated[list[UnservedPool], Field(max_length=MAX_UNSERVED)] = Field(default_factory=list)
    """Tasks that are handed out wait for an explorer of these."""
    settings: ToldSettings = Field(default_factory=dict)


class ExplorerLeft(Record):
    """An explorer has shut down; whatever it still ran is to be handed out again."""

    SCHEMA: ClassVar[str] = "event.explorer_left"

    explorer: Identifier
    incarnation: Identifier
    reason: str = ""


class RolloutFinished(Record):
    """One attempt ended. Sent after its experiences are durable, so they can be read at once."""

    SCHEMA: ClassVar[str] = "event.rollout_finished"

    explorer: Identifier
    incarnation: Identifier
    task_id: Identifier
    attempt: Positive
    batch_id: Identifier
    batch_type: BatchType
    status: RolloutStatus
    completed_runs: Annotated[int, Field(ge=0, le=MAX_REPEAT_TIMES)]
    total_runs: Annotated[int, Field(ge=0, le=MAX_REPEAT_TIMES)]
    metrics: list[Metrics] = Field(default_factory=list)
    """One per run, as the workflow gave them."""
    experience: Position | None = None
    """The experience record of this attempt; absent for eval batches, failures, and where there are ``pieces``."""
    samples: Annotated[int, Field(ge=0, le=MAX_SAMPLES)] = 0
    version_min: VersionOrNone = -1
    version_max: VersionOrNone = -1
    """Lowest and highest model version that drew any of its tokens."""
    prompt_tokens: Count = 0
    response_tokens: Count = 0
    seconds: Seconds = 0.0
    error: str | None = None
    """The first error, with its type, where status is not ``completed``."""
    pieces: Annotated[list[ExperiencePiece], Field(max_length=MAX_PIECES)] = Field(default_factory=list)
    """The experience records of a group that is too large for one, in the order of its samples. A coordinator that does
    not know this field finds no experience, and has the attempt made again."""
    runs: Annotated[list[Count], Field(max_length=MAX_REPEAT_TIMES)] = Field(default_factory=list)
    """Which runs are done, where status is ``partial``: only the others are asked for again. Empty: not said."""


class TrainerHeartbeat(Record):
    """A trainer lives, and serves weights at this address. The first one is how it joins."""

    SCHEMA: ClassVar[str] = "event.trainer_heartbeat"

    trainer: Identifier
    incarnation: Identifier
    state: Literal["starting", "ready", "training", "done", "draining"]
    """``done``: with all steps, the last checkpoint and the export; it serves weights."""
    model: Identifier
    step: Version
    """Steps trained so far."""
    version: VersionOrNone
    """The newest version whose weights it can send."""
    master_address: str
    master_port: Port
    needs_from: Count | None = None
    """Offset in ``batches`` from which on its oldest checkpoint would go on; what lies before is trained for good.
    Absent: not known."""
    sent_at: Time = 0.0
    settings: ToldSettings = Field(default_factory=dict)


class StepTrained(Record):
    """A step is trained; its weights can be had from the trainer as ``version``."""

    SCHEMA: ClassVar[str] = "event.step_trained"
    SENT_ON: ClassVar[bool] = True

    trainer: Identifier
    writer: Identifier | None = None
    """Its name on ``steps``, which has that of its stage behind a slash. Absent: not known, or ``trainer`` itself."""
    incarnation: Identifier
    model: Identifier
    step: Version
    version: Version
    publish: bool
    """True when this version is to be moved into the explorers."""
    again: bool = False
    """True for an older version that can be had again, because a ``VersionWanted`` named it; no step was trained."""
    batch_id: Identifier | None = None
    """The batch that was trained on; absent for version 0."""
    metrics: Metrics = Field(default_factory=dict)
    method: Literal["gloo", "nccl", "memory", "checkpoint", "object"] = "gloo"
    """How its weights come to explorers. Over links, the trainer's device decides between gloo and nccl."""
    checksum: str
    """SHA-256 over the transfer buckets of this version, in order, hex."""
    master_address: str
    master_port: Port
    checkpoint: str | None = None
    """Folder of the newest durable checkpoint."""
    seconds: Seconds = 0.0
    skipped: SkippedBatches = Field(default_factory=list)
    """Batches that were passed over on the way to this version, the last ones."""
    rollback: Rollback | None = None
    """The last one in its lineage."""
    dtype: Annotated[str, Field(max_length=32)] | None = None
    """In which type the trainer computes, such as ``bfloat16``."""
    source: Annotated[str, Field(max_length=256)] | None = None
    """The model that training began with, ``organization/name@commit``, where it is from a hub."""


class VersionWanted(Record):
    """The explorers' side wants a version, and the trainer is to publish one."""

    SCHEMA: ClassVar[str] = "event.version_wanted"

    model: Identifier
    at_least: Version = 0
    """This version or a newer one will do, as soon as it is trained."""
    version: Version | None = None
    """This very version, from the checkpoint that was kept of it. Then ``at_least`` says nothing."""
    rollback: Rollback | None = None
    """Training is to go on from this version, and what is newer is discarded. Then the others say nothing."""
    sent_at: Time = 0.0


class VersionRefused(Record):
    """A trainer cannot publish the version that was wanted."""

    SCHEMA: ClassVar[str] = "event.version_refused"

    trainer: Identifier
    incarnation: Identifier
    model: Identifier
    version: Version
    reason: str
    available: Annotated[list[Version], Field(max_length=MAX_ITEMS)] = Field(default_factory=list)
    """Versions that it can publish."""


class Superseded(Record):
    """Another incarnation of this service has begun, and this one counts no more: it is to end.

    The coordinator writes it: that of an explorer into its lane on ``rollouts``, that of a trainer to
    ``coordinator-events``.
    """

    SCHEMA: ClassVar[str] = "event.superseded"

    service: Literal["explorer", "trainer"]
    name: Identifier
    incarnation: Identifier
    """The incarnation that is over."""
    by: Identifier
    """The one that counts."""


class WeightsSynced(Record):
    """An explorer serves (or failed to take) a model version."""

    SCHEMA: ClassVar[str] = "event.weights_synced"

    explorer: Identifier
    incarnation: Identifier
    model: Identifier
    version: Version
    epoch: Count
    ok: bool
    checksum: str = ""
    """SHA-256 of the bytes that it received, computed by itself."""
    error: str | None = None
    control_s: Seconds = 0.0
    """From reading the announcement to the first byte."""
    transfer_s: Seconds = 0.0
    """From then to the last byte."""
    verify_s: Seconds = 0.0
    """From then until the bytes were known to be those that were sent."""
    prepare_s: Seconds = 0.0
    """From then until all was done that could be done while it generated."""
    pause_s: Seconds = 0.0
    """How long generation stood still."""
