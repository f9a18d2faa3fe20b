"""The state of a mesh, folded from ``batches``, ``model-versions`` and the topics of events. Pure: no clock.

Times are those of the log (seconds since the Unix epoch, as each record says when it was written), so that a view made
from a log read later is the view that there was.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    BatchSkipped,
    ExplorerHeartbeat,
    ExplorerLeft,
    ModelVersion,
    RolloutFinished,
    StepTrained,
    TrainerHeartbeat,
    WeightsSynced,
)
from schemas.record import BatchType, Metrics
from trinity_bus.client.fleet import FleetView
from trinity_bus.rollout.metrics import reward_of

RATE_WINDOW_S: Final = 5.0
"""Tokens per second are averaged over this much time."""
ALIVE_S: Final = 10.0
"""An explorer that has said nothing for this long is shown as lost; the coordinator's own limit is a setting."""


@dataclass(slots=True)
class BatchView:
    """One batch: where it stands, and when it got there."""

    batch_id: str
    batch_type: BatchType
    state: BatchLifecycleState
    sequence: int = 0
    expected: int | None = None
    """Tasks that it will have; ``None`` for an open batch."""
    accepted: int = 0
    completed: int = 0
    """Tasks with a result, failed ones too."""
    failed: int = 0
    aborted: int = 0
    min_wait_num: int | None = None
    min_version: int = 0
    reward: float | None = None
    """Mean over its tasks, once it is finalized."""
    metrics: Metrics = field(default_factory=dict)
    reason: str | None = None
    """Why it was aborted, or is to be passed over."""
    created_at: float = 0.0
    """Of the oldest record of it that the log still has."""
    changed_at: float = 0.0
    """Of the newest."""
    running_at: float | None = None
    finalized_at: float | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in {BatchLifecycleState.FINALIZED, BatchLifecycleState.ABORTED}


@dataclass(slots=True)
class ExplorerView:
    """One explorer, as it last spoke."""

    name: str
    incarnation: str
    state: str
    slots: int = 0
    running: int = 0
    model_version: int = -1
    heard_at: float = 0.0
    joined_at: float = 0.0
    syncs: int = 0
    sync_failures: int = 0
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    """(time, tokens generated) of its heartbeats within the window."""

    @property
    def tokens_per_s(self) -> float:
        """Generated over the last seconds."""
        if len(self.samples) < 2:
            return 0.0
        (begin, first), (end, last) = self.samples[0], self.samples[-1]
        return (last - first) / (end - begin) if end > begin else 0.0

    def alive(self, now: float) -> bool:
        """Whether it has spoken lately."""
        return self.state != "left" and now - self.heard_at <= ALIVE_S


@dataclass(slots=True)
class StepView:
    """One step of training."""

    step: int
    version: int
    batch_id: str | None
    trained_at: float
    seconds: float
    metrics: Metrics
    checksum: str
    checkpoint: str | None


@dataclass(frozen=True, slots=True)
class SyncView:
    """An explorer has taken a version."""

    at: float
    checksum: str
    """Of the bytes that it received."""
    control_s: float
    transfer_s: float
    pause_s: float


@dataclass(slots=True)
class MeshView:
    """All that is known. Feed it every record of the three topics, in the order of each partition.

    The partitions may come in any order among themselves, so nothing here needs a cause to be seen before its effect.
    """

    batches: dict[str, BatchView] = field(default_factory=dict)
    explorers: dict[str, ExplorerView] = field(default_factory=dict)
    steps: dict[int, StepView] = field(default_factory=dict)
    """By step; 0 is the start."""
    announced_at: dict[int, float] = field(default_factory=dict)
    """Version to when it was first announced."""
    synced: dict[int, dict[str, SyncView]] = field(default_factory=dict)
    """Version to explorer to how it took it."""
    model: ModelVersion | None = None
    """The newest announcement."""
    trainer: TrainerHeartbeat | None = None
    rollouts: Counter[str] = field(default_factory=Counter)
    """Finished attempts by status."""
    response_tokens: int = 0
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=5))
    """The newest failures of rollouts and of transfers, for people."""
    fleet: FleetView = field(default_factory=FleetView)
    """The coordinator that works, and every runner."""
    now: float = 0.0
    """Time of the newest record, or of the last ``tick``."""

    def tick(self, now: float) -> None:
        """Let time go on where no record comes: seconds since the epoch."""
        self.now = max(self.now, now)
        self.fleet.tick(now)

    def apply(self, record: object, at: float) -> None:
        """Take one record; those of other kinds change nothing.

        Args:
            record: As read.
            at: When it was written, in seconds since the epoch.
        """
        self.tick(at)
        self.fleet.apply(record, at)
        match record:
            case BatchRecord():
                self._batch(record, at)
            case BatchSkipped():
                self._skipped(record)
            case ExplorerHeartbeat():
                self._heartbeat(record, at)
            case ExplorerLeft():
                self._left(record)
            case RolloutFinished():
                self._rollout(record)
            case StepTrained(again=False):
                self._step(record, at)
            case WeightsSynced():
                self._synced(record, at)
            case TrainerHeartbeat():
                self.trainer = record
            case ModelVersion():
                self._announced(record, at)
            case _:
                return

    # ------------------------------------------------------------------------------------------------- questions

    @property
    def train_batches(self) -> list[BatchView]:
        """Train batches that have a place in the order of training, in it."""
        found = [batch for batch in self.batches.values() if batch.batch_type == "train" and batch.sequence > 0]
        return sorted(found, key=lambda batch: batch.sequence)

    @property
    def trained(self) -> list[StepView]:
        """The steps of training in order, without the start."""
        return [self.steps[number] for number in sorted(self.steps) if number > 0]

    @property
    def states(self) -> Counter[str]:
        """How many batches are in each state."""
        return Counter(batch.state.value for batch in self.batches.values())

    @property
    def tokens_per_s(self) -> float:
        """Of all explorers that are alive."""
        return sum(explorer.tokens_per_s for explorer in self.explorers.values() if explorer.alive(self.now))

    def reward(self, step: StepView) -> float | None:
        """Mean reward of the batch that a step was trained on."""
        batch = self.batches.get(step.batch_id or "")
        return None if batch is None else batch.reward

    def serving(self, version: int) -> list[str]:
        """Names of the explorers that serve this version."""
        return sorted(
            name
            for name, explorer in self.explorers.items()
            if explorer.state not in {"starting", "left"} and explorer.model_version == version
        )

    # --------------------------------------------------------------------------------------------------- records

    def _batch(self, record: BatchRecord, at: float) -> None:
        batch = self.batches.get(record.batch_id)
        if batch is None:
            batch = BatchView(record.batch_id, record.batch_type, record.state, created_at=at)
            self.batches[record.batch_id] = batch
        batch.state, batch.sequence, batch.reason = record.state, record.sequence, record.reason
        batch.expected, batch.accepted = record.expected_task_count, record.accepted_task_count
        batch.completed, batch.failed = record.completed_task_count, record.failed_task_count
        batch.aborted, batch.min_wait_num = record.aborted_task_count, record.min_wait_num
        batch.min_version, batch.changed_at = record.min_version, at
        if record.state is BatchLifecycleState.RUNNING and batch.running_at is None:
            batch.running_at = at
        if record.state is BatchLifecycleState.FINALIZED:
            batch.finalized_at = at
            batch.metrics = record.metrics
            batch.reward = reward_of(record.metrics)

    def _skipped(self, record: BatchSkipped) -> None:
        batch = self.batches.get(record.batch_id)
        if batch is not None:
            batch.reason = f"to be passed over: {record.reason}"

    def _heartbeat(self, beat: ExplorerHeartbeat, at: float) -> None:
        explorer = self.explorers.get(beat.explorer)
        if explorer is None or explorer.incarnation != beat.incarnation:
            explorer = ExplorerView(beat.explorer, beat.incarnation, beat.state, joined_at=at)
            self.explorers[beat.explorer] = explorer
        explorer.state, explorer.slots, explorer.running = beat.state, beat.slots, len(beat.running)
        explorer.model_version, explorer.heard_at = beat.model_version, at
        explorer.samples.append((at, beat.tokens_generated))
        while explorer.samples[0][0] < at - RATE_WINDOW_S:
            explorer.samples.popleft()

    def _left(self, event: ExplorerLeft) -> None:
        explorer = self.explorers.get(event.explorer)
        if explorer is not None and explorer.incarnation == event.incarnation:
            explorer.state = "left"

    def _rollout(self, event: RolloutFinished) -> None:
        self.rollouts[event.status] += 1
        self.response_tokens += event.response_tokens
        if event.error is not None:
            self.errors.append(f"{event.explorer}, task {event.task_id}: {event.error}")

    def _step(self, event: StepTrained, at: float) -> None:
        self.steps[event.step] = StepView(
            step=event.step,
            version=event.version,
            batch_id=event.batch_id,
            trained_at=at,
            seconds=event.seconds,
            metrics=event.metrics,
            checksum=event.checksum,
            checkpoint=event.checkpoint,
        )

    def _synced(self, event: WeightsSynced, at: float) -> None:
        explorer = self.explorers.get(event.explorer)
        if explorer is not None and explorer.incarnation == event.incarnation:
            explorer.syncs += event.ok
            explorer.sync_failures += not event.ok
            if event.ok:
                explorer.model_version = event.version
        if event.ok:
            took = SyncView(at, event.checksum, event.control_s, event.transfer_s, event.pause_s)
            self.synced.setdefault(event.version, {})[event.explorer] = took
        else:
            self.errors.append(f"{event.explorer} did not take version {event.version}: {event.error}")

    def _announced(self, record: ModelVersion, at: float) -> None:
        self.model = record
        self.announced_at.setdefault(record.version, at)
