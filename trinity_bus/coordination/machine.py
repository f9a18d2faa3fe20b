r"""The coordinator's decisions, all of them: ``(state, input, time) -> (state, effects)``.

::

          tasks         commands            events                       time
            |               |                 |                            |
            v               v                 v                            v
        +-------------------------------------------------------------------------+
        |  Ledger: tasks, batches     Fleet: explorers      WeightSync: versions  |
        |     \__________ Dispatcher, Endings, BatchCommands ___________/         |
        +-------------------------------------------------------------------------+
           |          |          |          |           |              |            |
        rollouts   batches    results    replies  model-versions  dead-letters  changelog

The machine has no clock, no client and no thread: it is told the time, and returns what is to be done. The same inputs
from the same state give the same effects. Whoever runs it carries out the effects of a call and stores its
:meth:`~CoordinatorMachine.changes` in one step, or forgets the machine and restores another from what was stored.

A task is refused or put in a batch, a command is replied to, a heartbeat tells of slots and versions, a finished
rollout answers its part if its attempt counts. When time passes, silent explorers, late attempts, clients, transfers
and batches are dealt with. After each input: full batches start, lagging explorers get the weights, tasks go to
explorers with room, and complete batches are finalized, until nothing more follows.
"""

from collections.abc import Iterable, Mapping
from typing import assert_never

from schemas import (
    CoordinatorHeartbeat,
    ExplorerHeartbeat,
    ExplorerLeft,
    FinalizeUpgrade,
    ModelVersion,
    PublishVersion,
    RollBack,
    RolloutFinished,
    SetPace,
    Superseded,
)
from schemas.topics import MODEL_VERSIONS, ROLLOUTS
from trinity_bus.config import CoordinatorSettings, SynchronizerSettings
from trinity_bus.coordination.batches.tasks import OpenTask
from trinity_bus.coordination.dispatch.dispatcher import Dispatcher, slow_attempts
from trinity_bus.coordination.dispatch.explorer import Explorer
from trinity_bus.coordination.effects import Effect, Fact, RejectionReason, RejectTask, Write
from trinity_bus.coordination.events.batch_commands import BatchCommands
from trinity_bus.coordination.events.contributions import Contributions
from trinity_bus.coordination.events.endings import Endings
from trinity_bus.coordination.events.versions import Versions
from trinity_bus.coordination.inputs import (
    CommandArrived,
    ContributionArrived,
    Event,
    EventArrived,
    Input,
    TaskArrived,
    Tick,
)
from trinity_bus.coordination.machine_state import MachineState
from trinity_bus.coordination.pools import Kind, kind_of


class CoordinatorMachine:
    """The state machine of the coordinator. ConfigError where the two kinds of settings starve the mesh.

    >>> CoordinatorMachine(CoordinatorSettings()).handle(Tick(), now=0.0)
    []
    """

    def __init__(self, settings: CoordinatorSettings, synchronizer: SynchronizerSettings | None = None) -> None:
        self._settings = settings
        self.state = state = MachineState(settings, synchronizer or SynchronizerSettings())
        self.ledger, self.fleet, self.sync = state.ledger, state.fleet, state.sync
        self._clock, self._out = state.clock, state.out
        self._dispatcher = Dispatcher(settings, self.ledger, self.fleet, self._out)
        self._endings = Endings(state, self._dispatcher)
        self._store = state.store
        self._requests = BatchCommands(state, self._endings)
        self._contributions = Contributions(state, self._endings)
        self._versions = Versions(state, self._endings.requeue_running)
        # What was known, and how often something was queued, when unknown workflows were last looked for.
        self._judged: tuple[int, int] | None = None

    # -- what whoever runs it calls ----------------------------------------------------------------------------------

    def handle(self, given: Input, now: float) -> list[Effect]:
        """Take in one input. ``now``: seconds of any clock; see :mod:`trinity_bus.awake` for what becomes of jumps."""
        return self.handle_all((given,), now)

    def handle_all(self, inputs: Iterable[Input], now: float) -> list[Effect]:
        """Take in several inputs that arrived together; what follows from them is decided once, at the end."""
        self._clock.advance(now)
        ticked = False
        for given in inputs:
            match given:
                case TaskArrived():
                    self._task(given)
                case EventArrived():
                    self._event(given.event, given.traceparent)
                case CommandArrived() | ContributionArrived():
                    self._command(given)
                case Tick():
                    self._time_passed()
                    ticked = True
                case _:
                    assert_never(given)
        self._follow_up(ticked=ticked)
        return self._out.take()

    def wants_tasks(self) -> bool:
        return self.ledger.wants_tasks()

    @property
    def has_more(self) -> bool:
        """Whether more follows from the state, though nothing comes: what follows at once is bounded."""
        return self._dispatcher.is_cut_short

    def changes(self) -> list[tuple[str, bytes | None]]:
        """Entries of the state that changed since the last call, with their present values; None: no longer there."""
        self.ledger.pages.turn()
        return self._store.changes()

    def entries(self) -> dict[str, bytes]:
        return dict(self._store.entries())

    def restore(self, entries: Iterable[tuple[str, bytes | None]]) -> None:
        """Become, as a new machine, the one that wrote these changes; StateError where they cannot be read."""
        self._store.load(entries, self.state.rebuild)
        self._endings.restart_waits()

    @property
    def level(self) -> int:
        return self._store.codec.level

    def heartbeat(
        self, coordinator: str, incarnation: str, sent_at: float = 0.0, settings: Mapping[str, str] | None = None
    ) -> CoordinatorHeartbeat:
        return CoordinatorHeartbeat(
            coordinator=coordinator,
            incarnation=incarnation,
            open_batches=len(self.ledger.batches),
            open_tasks=len(self.ledger.tasks),
            running_attempts=len(self.ledger.running),
            max_timeout_s=self._settings.task_timeout_s,
            attempts_per_task=self._settings.max_attempts,
            dynamic_timeout_s=self._dispatcher.timeout_s(),
            wait_after_min_s=self._settings.wait_after_min_s,
            unserved=self.ledger.queue.unserved(self.fleet.pools(), self._settings.model),
            sent_at=sent_at,
            settings=dict(settings or {}),
        )

    # -- inputs ------------------------------------------------------------------------------------------------------

    def _task(self, arrived: TaskArrived) -> None:
        task = arrived.task
        refused = self.ledger.refusal(task)
        # In a named batch it counts, and fails when its turn comes: without it the batch would never be full.
        kind = kind_of(task, self._settings.model)
        if refused is None and task.batch_id is None and self._nobody_knows(kind):
            refused = RejectionReason.UNKNOWN_WORKFLOW, self._unknown(kind)
        if refused is not None:
            self._out.add(RejectTask(task, arrived.origin, *refused, arrived.traceparent))
            return
        new_batch = self.ledger.accept(arrived)
        if new_batch is not None:
            self._out.publish_batch(new_batch.record())
        self._endings.abort_unfilled_batches()

    def _command(self, arrived: CommandArrived | ContributionArrived) -> None:
        traceparent = arrived.traceparent
        again = self.state.replies.again(arrived.command, traceparent)
        if again is not None:
            self._out.add(again)
            return
        if isinstance(arrived, ContributionArrived):
            self._contributions.handle(arrived)
            return
        command = arrived.command
        match command:
            case PublishVersion() | RollBack():
                self._versions.asked(command, traceparent)
            case FinalizeUpgrade():
                error, detail = self._store.raise_level(command.level)
                self._out.add(self.state.replies.give(command, error, detail, traceparent))
            case _:
                self._requests.handle(command, traceparent, operator=arrived.operator)

    def _event(self, event: Event, traceparent: str | None) -> None:
        match event:
            case RolloutFinished():
                self._endings.finished(event, traceparent)
            case ExplorerHeartbeat():
                self._heartbeat(event)
            case ExplorerLeft():
                self._left(event)
            case _:
                self._versions.handle(event, traceparent)

    def _heartbeat(self, beat: ExplorerHeartbeat) -> None:
        replaced = self.fleet.is_replaced_by(beat)
        if replaced is not None:
            self._lose(replaced, "a new incarnation of the explorer has begun", cancel=True)
        if self.fleet.is_zombie(beat):
            now = self.fleet.explorers[beat.explorer].incarnation
            self._out.dismiss(
                Superseded(service="explorer", name=beat.explorer, incarnation=beat.incarnation, by=now), beat.lane
            )
            return
        if self.fleet.heartbeat(beat, self._clock.now):
            version = f"version {beat.model_version}" if beat.model_version >= 0 else "no version yet"
            self._out.observe(Fact.EXPLORER_JOINED, beat.explorer, f"{beat.slots} slots, {version}")
        self.fleet.note_turns(beat)
        if beat.state == "draining":
            self._endings.requeue_from(
                self.fleet.explorers[beat.explorer], {(one.task_id, one.attempt) for one in beat.running}
            )
        if beat.pace_s not in (None, self.fleet.pace_s):
            pace = SetPace(explorer=beat.explorer, incarnation=beat.incarnation, pace_s=self.fleet.pace_s)
            self._out.add(Write(ROLLOUTS, beat.explorer, pace, lane=beat.lane))

    def _left(self, event: ExplorerLeft) -> None:
        explorer = self.fleet.find(event.explorer, event.incarnation)
        if explorer is None:
            self._out.observe(
                Fact.ZOMBIE_EXPLORER, event.explorer, f"incarnation {event.incarnation} left, was over before"
            )
            return
        self._lose(explorer, f"the explorer left: {event.reason}", cancel=False)
        self.fleet.depart(explorer, for_good=True)
        self._out.observe(Fact.EXPLORER_LEFT, event.explorer, event.reason)

    def _time_passed(self) -> None:
        now = self._clock.now
        for explorer in self.fleet.silent(now):
            self._lose(explorer, "the explorer was silent for too long", cancel=True)
            self.fleet.depart(explorer, for_good=False)
            self._out.observe(Fact.EXPLORER_LOST, explorer.name, f"no heartbeat for {now - explorer.last_seen:.1f} s")
        for attempt in self.ledger.overdue(now):
            if attempt.key in self.ledger.running:
                error = f"timeout: no result after {attempt.timeout_s:g} s"
                self._endings.attempt_failed(
                    attempt, error, Fact.ATTEMPT_TIMED_OUT, took_s=attempt.timeout_s, cancel=True
                )
        self._endings.end_overdue_batches()
        for name in self.sync.overdue(now):
            self._out.observe(Fact.SYNC_FAILED, name, f"no answer for version {self.sync.version} in time")
        self._versions.overdue()

    # -- what follows ------------------------------------------------------------------------------------------------

    def _follow_up(self, *, ticked: bool) -> None:
        now = self._clock.now
        self._endings.finalize_batches()
        announcement = self._versions.resolve() or self._released()
        if announcement is None:
            announcement = self.sync.next_round(self.fleet, now)
        if announcement is not None:
            self._out.add(Write(MODEL_VERSIONS, announcement.model, announcement, self.sync.state.traceparent))
        self._settle_batches()
        if self._requests.expire(time_passed=ticked):
            self._settle_batches()
        self._out.request_version(self.sync.want(self.ledger.counters.finalized))
        self._dispatcher.dispatch(self.sync.version, now, self._versions.ceiling)
        if ticked:
            for attempt in slow_attempts(self._settings, self.ledger, now):
                if self._dispatcher.speculate(attempt, self.sync.version, now):
                    self._out.observe(Fact.SPECULATIVE_ATTEMPT, attempt.task_id, f"attempt {attempt.number} is slow")

    def _released(self) -> ModelVersion | None:
        # A version that was held, and is no more.
        if self.sync.state.held is None:
            return None
        before = self.sync.state.release
        announcement = self.sync.release(self.ledger.oldest_needed(), self.fleet.followers(), self._clock.now)
        if announcement is not None and before is not None and self.sync.is_trained_again(before):
            # Whoever serves what the former incarnation had under this number does not serve this version.
            self.fleet.discard(announcement.version, announcement.version)
        return announcement

    def _settle_batches(self) -> None:
        # Until nothing more follows from it.
        while True:
            ended = self._endings.finalize_batches()
            admitted = self.ledger.admit(announced=self.sync.version, newest=self.sync.for_evaluation)
            for record in admitted:
                self._out.publish_batch(record)
                self._contributions.count(record)
            if not (ended or admitted or self._fail_unknown_workflows()):
                return

    def _fail_unknown_workflows(self) -> bool:
        # Tasks that were accepted while nobody could know their workflow, and whose workflow nobody has.
        looked = (self.fleet.membership_changes, self.ledger.queue.additions)
        if looked == self._judged:
            return False
        hopeless: dict[str, OpenTask] = {}
        for batch in self.ledger.queue:
            for kind in [kind for kind in batch.queued if self._nobody_knows(kind)]:
                queued = sorted(batch.queued[kind], key=lambda queued: queued[1:])
                hopeless |= {task_id: self.ledger.tasks[task_id] for *_, task_id in queued}
                self.ledger.queue.clear(batch, kind)
        for task in hopeless.values():
            error = self._unknown(task.kind)
            self._out.add(RejectTask(task.task, task.origin, RejectionReason.UNKNOWN_WORKFLOW, error, task.traceparent))
            self._endings.fail_task(task, error)
        self._judged = (self.fleet.membership_changes, self.ledger.queue.additions)
        return bool(hopeless)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _lose(self, explorer: Explorer, reason: str, *, cancel: bool) -> None:
        # To be called while the explorer is in the fleet.
        self._endings.explorer_lost(explorer, reason, cancel=cancel)
        self.sync.departed((explorer.name, explorer.incarnation))

    def _nobody_knows(self, kind: Kind) -> bool:
        return not self.fleet.knows(kind) and self.fleet.can_judge(kind[0])

    def _unknown(self, kind: Kind) -> str:
        pool, workflow = kind
        known = ", ".join(self.fleet.workflows(pool)) or "none at all"
        whose = f" of pool {pool!r}" if pool else ""
        return f"no explorer{whose} has a workflow {workflow!r}; known are {known}"
