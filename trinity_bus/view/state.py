"""The state of a mesh, folded from ``batches``, ``model-versions``, ``version-history`` and the topics of events. Pure.

Times are those of the log (seconds since the Unix epoch, as each record says when it was written), so that a view made
from a log read later is the view that there was. Nothing here grows without end: see :class:`Limits`.

An explorer is ``starting`` before it says more, whatever it says last by its heartbeats, ``left`` once it says so, and
*lost* when it has said nothing for ``alive_s``; what an earlier incarnation said ends with the first word of the next.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    BatchSkipped,
    CoordinatorHeartbeat,
    ExplorerHeartbeat,
    ExplorerLeft,
    ModelVersion,
    PublishedVersion,
    RolloutFinished,
    RunnersReport,
    RunnerState,
    StepTrained,
    TrainerHeartbeat,
    VersionWanted,
    WeightsSynced,
)
from trinity_bus.rollout.metrics import reward_of
from trinity_bus.view.parts import RATE_WINDOW_S, BatchView, ExplorerView, Limits, StepView, SyncView, VersionRow, trim

ALIVE_S: Final = 10.0  # Who has said nothing for this long counts as lost; the coordinator's own limit is a setting


@dataclass(slots=True)
class MeshState:
    """All that is known. Feed it the records of any of the topics, in the order of each partition.

    The partitions may come in any order among themselves, so nothing here needs a cause to be seen before its effect.
    A record that comes twice counts twice in ``rollouts``, ``response_tokens`` and the syncs of an explorer.
    ``model`` is None where there is but one.
    """

    model: str | None = None
    alive_s: float = ALIVE_S
    limits: Limits = field(default_factory=Limits)
    now: float = field(default=0.0, init=False)  # Time of the newest record, or of the last ``tick``
    _newest: float = field(default=0.0, init=False, compare=False)  # Time of the newest record
    batches: dict[str, BatchView] = field(default_factory=dict, init=False)
    explorers: dict[str, ExplorerView] = field(default_factory=dict, init=False)
    # The newest heartbeat of the one that works
    coordinator: CoordinatorHeartbeat | None = field(default=None, init=False)
    coordinator_at: float = field(default=0.0, init=False)
    trainer: TrainerHeartbeat | None = field(default=None, init=False)
    trainer_at: float = field(default=0.0, init=False)
    steps: dict[int, StepView] = field(default_factory=dict, init=False)  # By step; 0 is the start
    # By version: how it was published, and when
    history: dict[int, tuple[PublishedVersion, float]] = field(default_factory=dict, init=False)
    announced: ModelVersion | None = field(default=None, init=False)  # The newest announcement
    # The version that the explorers' side asked for last, with ``explorer_driven``; 0 before
    wanted: int = field(default=0, init=False)
    rollouts: Counter[str] = field(default_factory=Counter, init=False)  # Finished attempts by status
    response_tokens: int = field(default=0, init=False)
    _synced: dict[tuple[int, str], SyncView] = field(default_factory=dict, init=False)
    _errors: list[tuple[float, str]] = field(default_factory=list, init=False)

    def tick(self, now: float) -> None:
        """Let time go on where no record comes: seconds since the epoch, by the clock of the log."""
        self.now = max(self._newest, now)

    def apply(self, record: object, at: float) -> None:  # noqa: C901, PLR0912 - a case for each kind of record
        """Take one record; those of other kinds, and of other models, change nothing. ``at``: when it was written."""
        self._newest = max(self._newest, at)
        self.now = max(self.now, at)
        match record:
            case StepTrained() | WeightsSynced() | TrainerHeartbeat() | ModelVersion() | PublishedVersion() if (
                self.model not in {None, record.model}
            ):
                return
            case BatchRecord():
                self._batch(record, at)
            case BatchSkipped():
                if (batch := self.batches.get(record.batch_id)) is not None:
                    batch.reason = self.limits.cut(f"to be passed over: {record.reason}")
            case ExplorerHeartbeat():
                self._heartbeat(record, at)
            case RunnersReport():
                self._heard(record.explorer, record.incarnation, at).runners = record.runners
            case ExplorerLeft():
                self._left(record)
            case RolloutFinished():
                self._rollout(record, at)
            case CoordinatorHeartbeat():
                self.coordinator, self.coordinator_at = record, at
            case StepTrained(again=False):
                self._step(record, at)
            case WeightsSynced():
                self._took(record, at)
            case TrainerHeartbeat():
                self.trainer, self.trainer_at = record, at
            case ModelVersion():
                self.announced = record
            case PublishedVersion():
                self.history[record.version] = (record, at)
                trim(self.history, self.limits.versions, int)
            case VersionWanted(version=None, rollback=None) if record.model == (self.model or record.model):
                self.wanted = record.at_least
            case _:
                return

    # ------------------------------------------------------------------------------------------------- questions

    @property
    def trained(self) -> list[StepView]:
        """The steps of training in order, without the start."""
        return [self.steps[number] for number in sorted(self.steps) if number > 0]

    @property
    def states(self) -> Counter[str]:
        return Counter(batch.state.value for batch in self.batches.values())

    @property
    def errors(self) -> list[str]:
        return [text for _, text in self._errors]

    @property
    def version(self) -> int:
        """The version to be served; -1 before there is any."""
        return -1 if self.announced is None else self.announced.version

    @property
    def trainer_is_alive(self) -> bool:
        return self.trainer is not None and self.now - self.trainer_at <= self.alive_s

    @property
    def coordinator_is_alive(self) -> bool:
        return self.coordinator is not None and self.now - self.coordinator_at <= self.alive_s

    @property
    def ended_at(self) -> float | None:
        """When the last of all who were there was heard; None: somebody is alive, or nobody was ever there."""
        heard = [one.heard_at for one in self.explorers.values()]
        heard += [at for at in (self.coordinator_at, self.trainer_at) if at]
        if not heard or self.coordinator_is_alive or self.trainer_is_alive or any(self.alive()):
            return None
        return max(heard)

    @property
    def tokens_per_s(self) -> float:
        return sum(explorer.tokens_per_s for explorer in self.alive())

    def is_alive(self, explorer: ExplorerView) -> bool:
        """Whether an explorer has spoken lately, and not said that it leaves."""
        return explorer.state != "left" and self.now - explorer.heard_at <= max(self.alive_s, explorer.patience_s)

    def alive(self) -> Iterator[ExplorerView]:
        return (explorer for _, explorer in sorted(self.explorers.items()) if self.is_alive(explorer))

    def explorer_states(self) -> Counter[str]:
        """How many explorers are in each state; ``stopped`` are those that fell silent. Who has left is not counted."""
        present = (explorer for explorer in self.explorers.values() if explorer.state != "left")
        return Counter(explorer.state if self.is_alive(explorer) else "stopped" for explorer in present)

    def runners(self) -> list[RunnerState]:
        return [runner for explorer in self.alive() for runner in explorer.runners]

    def running_tasks(self) -> frozenset[str]:
        return frozenset(task_id for explorer in self.alive() for task_id in explorer.running)

    def serving(self, version: int) -> list[str]:
        return [e.name for e in self.alive() if e.state != "starting" and e.model_version == version]

    def synced(self, version: int) -> dict[str, SyncView]:
        return {name: sync for (taken, name), sync in self._synced.items() if taken == version}

    def reward(self, step: StepView) -> float | None:
        """Mean reward of the batch that a step was trained on."""
        batch = self.batches.get(step.batch_id or "")
        return None if batch is None else batch.reward

    def versions(self) -> list[VersionRow]:
        announced = self.announced
        return [
            VersionRow(
                record=record,
                published_at=at,
                served_by=self.serving(version),
                announced=version == self.version,
                pinned=announced is not None and announced.pinned and version == announced.version,
                asked_by=announced.asked_by if announced is not None and version == announced.version else None,
            )
            for version, (record, at) in sorted(self.history.items())
        ]

    # --------------------------------------------------------------------------------------------------- records

    def _batch(self, record: BatchRecord, at: float) -> None:
        batch = self.batches.get(record.batch_id)
        if batch is None:
            if len(self.batches) >= self.limits.batches:
                ended = (batch_id for batch_id, known in self.batches.items() if known.ended)
                del self.batches[next(ended, next(iter(self.batches)))]
            batch = BatchView(record.batch_id, record.batch_type, record.state, created_at=at)
            self.batches[record.batch_id] = batch
        batch.state, batch.sequence = record.state, record.sequence
        batch.reason = None if record.reason is None else self.limits.cut(record.reason)
        batch.expected, batch.accepted = record.expected_task_count, record.accepted_task_count
        batch.completed, batch.failed = record.completed_task_count, record.failed_task_count
        batch.aborted, batch.min_wait_num = record.aborted_task_count, record.min_wait_num
        batch.min_version, batch.changed_at = record.min_version, at
        if record.state is BatchLifecycleState.RUNNING and batch.running_at is None:
            batch.running_at = at
        if record.state is BatchLifecycleState.FINALIZED:
            batch.finalized_at = at
            batch.metrics = self.limits.few(record.metrics)
            batch.reward = reward_of(record.metrics)

    def _heard(self, name: str, incarnation: str, at: float) -> ExplorerView:
        explorer = self.explorers.get(name)
        if explorer is None or explorer.incarnation != incarnation:
            explorer = self.explorers[name] = ExplorerView(name, incarnation)
        explorer.heard_at = max(explorer.heard_at, at)
        trim(self.explorers, self.limits.explorers, lambda known: self.explorers[known].heard_at)
        return explorer

    def _heartbeat(self, beat: ExplorerHeartbeat, at: float) -> None:
        explorer = self._heard(beat.explorer, beat.incarnation, at)
        explorer.state, explorer.slots, explorer.model_version = beat.state, beat.slots, beat.model_version
        explorer.pool, explorer.follows, explorer.beat = beat.pool, beat.follows, beat
        explorer.patience_s = beat.silent_after_s(0.0)
        explorer.running, explorer.attempts = frozenset(one.task_id for one in beat.running), len(beat.running)
        explorer.samples.append((at, beat.tokens_generated))
        while len(explorer.samples) > 2 and explorer.samples[0][0] < at - RATE_WINDOW_S:
            explorer.samples.popleft()

    def _left(self, event: ExplorerLeft) -> None:
        explorer = self._known(event.explorer, event.incarnation)
        if explorer is not None:
            explorer.state, explorer.running, explorer.runners = "left", frozenset(), []

    def _known(self, name: str, incarnation: str) -> ExplorerView | None:
        explorer = self.explorers.get(name)
        return explorer if explorer is not None and explorer.incarnation == incarnation else None

    def _rollout(self, event: RolloutFinished, at: float) -> None:
        self.rollouts[event.status] += 1
        self.response_tokens += event.response_tokens
        if event.error is not None:
            self._failed(f"{event.explorer}, task {event.task_id}: {event.error}", at)

    def _failed(self, text: str, at: float) -> None:
        insort(self._errors, (at, self.limits.cut(text)), key=lambda known: known[0])
        del self._errors[: -self.limits.errors]

    def _step(self, event: StepTrained, at: float) -> None:
        self.steps[event.step] = StepView(
            step=event.step,
            version=event.version,
            batch_id=event.batch_id,
            trained_at=at,
            seconds=event.seconds,
            metrics=self.limits.few(event.metrics),
            checksum=self.limits.cut(event.checksum),
            checkpoint=None if event.checkpoint is None else self.limits.cut(event.checkpoint),
        )
        trim(self.steps, self.limits.steps, int)

    def _took(self, event: WeightsSynced, at: float) -> None:
        explorer = self._known(event.explorer, event.incarnation)
        if explorer is not None:
            explorer.heard_at = max(explorer.heard_at, at)
            explorer.syncs += event.ok
            explorer.sync_failures += not event.ok
            if event.ok:
                explorer.model_version = event.version
        if event.ok:
            self._synced[event.version, event.explorer] = SyncView(at, self.limits.cut(event.checksum))
            trim(self._synced, self.limits.syncs)
        else:
            self._failed(f"{event.explorer} did not take version {event.version}: {event.error}", at)
