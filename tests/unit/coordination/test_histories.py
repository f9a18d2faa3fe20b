"""Random histories of a whole mesh, and the laws that hold in each of them.

The coordinator's machine is the real one. Explorers, the trainer, the log and the clock are simulated by ``World``:
events reach the machine late, interleaved and more than once (those of one sender in order, as Kafka keeps them);
explorers fail, stall, die and start anew; the trainer falls back to its checkpoint; the clock jumps; and the
coordinator is killed at any point, before or after its decisions were committed, and restored from its changelog.
Clients submit batches, wait for their end, cancel and abort; in half of the histories groups are split, batches end
without their last tasks, and slow tasks get second attempts.
"""

import random
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from schemas import (
    AbortBatch,
    BatchLifecycleState,
    BatchRecord,
    Cancel,
    CancelTasks,
    CommandReply,
    Dispatch,
    ExplorerHeartbeat,
    ExplorerLeft,
    FinalizeBatch,
    ModelVersion,
    Position,
    RolloutFinished,
    StepTrained,
    SubmitBatch,
    Task,
    TaskResult,
    TrainerHeartbeat,
    WeightsSynced,
)
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination import (
    TRANSITIONS,
    Announce,
    Answered,
    BatchMoved,
    CommandArrived,
    CoordinatorMachine,
    EventArrived,
    Fact,
    Observe,
    Order,
    Origin,
    Refuse,
    Reply,
    Request,
    TaskArrived,
    Tick,
    staleness,
)
from trinity_bus.coordination.inputs import Event, Input

SETTINGS = CoordinatorSettings(
    batch_size=4,
    group_size=2,
    max_staleness=1,
    max_inflight_batches=2,
    explorer_timeout_s=10,
    task_timeout_s=60,
    max_attempts=3,
    sync_timeout_s=20,
    dedup_window=300,
    max_open_tasks=40,
)
RICH_SETTINGS = SETTINGS.model_copy(
    update={
        "group_size": 5,
        "max_repeat_times_per_runner": 2,
        "return_partial_tasks": True,
        "over_rollout_ratio": 0.25,
        "wait_after_min_s": 3.0,
        "dynamic_timeout_ratio": 20.0,
        "straggler_factor": 2.0,
    }
)
WORKFLOWS = {"explorer-0": ["math"], "explorer-1": ["math", "rare"], "explorer-2": ["math"]}


@dataclass
class Explorer:
    """A simulated explorer: one life of it at a time."""

    name: str
    slots: int
    lives: int = 0
    alive: bool = False
    state: str = "ready"
    version: int = -1
    running: dict[tuple[str, int], Dispatch] = field(default_factory=dict)
    to_sync: deque[ModelVersion] = field(default_factory=deque)

    @property
    def incarnation(self) -> str:
        return f"{self.name}-life-{self.lives}"


@dataclass
class Told:
    """What the coordinator has been told of an explorer, as a careful observer would keep it."""

    incarnation: str
    state: str
    slots: int
    version: int
    outstanding: set[tuple[str, int]] = field(default_factory=set)


def parts_of(machine: CoordinatorMachine) -> dict[str, object]:
    """The whole state of a machine, as it holds it; only the clock's readings are left out."""
    ledger, kept = machine.ledger, machine.kept
    batches = ledger.batches.values()
    return {
        "tasks": ledger.tasks,
        "left": {task_id: (task.parts_left, task.homes) for task_id, task in ledger.tasks.items()},
        "running": ledger.running,
        "batches": ledger.batches,
        "open tasks": {batch.batch_id: set(batch.open_tasks) for batch in batches},
        "durations": {batch.batch_id: batch.durations for batch in batches},
        "queued": {b.batch_id: {w: sorted(queue) for w, queue in b.queued.items()} for b in batches},
        "line": [batch.batch_id for batch in ledger.line],
        "handed out": set(ledger.handed_out),
        "complete": set(ledger.complete),
        "counters": ledger.counters,
        "active": (ledger._active, ledger._kept_results),
        "admission": {
            "filling": {kind: batch.batch_id for kind, batch in ledger.admission.filling.items()},
            "unfilled": list(ledger.admission._unfilled),
            "unfilled tasks": ledger.admission._unfilled_tasks,
            "waiting": [batch.batch_id for batch in ledger.admission.waiting()],
            "training": list(ledger.admission._in_training),
        },
        "pages": ledger.pages._pages,
        "done": ledger.done._blocks,
        "closed": ledger.closed._blocks,
        "explorers": machine.fleet.explorers,
        "sync": machine.sync.state,
        "to cut": set(machine._endings._to_cut),
        "finalizers": kept.finalizers._waiting,
        "outcomes": kept.outcomes._entries,
        "replies": kept.replies.memory._entries,
    }


class World:
    """The mesh around one machine, and the observer that knows the laws."""

    def __init__(self, rng: random.Random, settings: CoordinatorSettings = SETTINGS) -> None:
        self.rng = rng
        self.settings = settings
        self.machine = CoordinatorMachine(self.settings)
        self.store: dict[str, bytes] = {}
        self.now = 100.0
        self.explorers = {name: Explorer(name, slots=3 + i) for i, name in enumerate(WORKFLOWS)}
        self.queues: dict[str, deque[Event]] = defaultdict(deque)
        self.heard: deque[Event] = deque(maxlen=20)
        self.tasks_sent = 0
        self.inputs = 0
        self.trainer_lives = 0
        self.step = 0
        self.to_train: list[BatchRecord] = []
        # what the observer knows
        self.accepted: dict[str, Task] = {}
        self.refused: Counter[str] = Counter()
        self.told: dict[str, Told] = {}
        self.produced: set[tuple[str, int, int, int]] = set()
        self.results: dict[str, TaskResult] = {}
        self.dispatched: dict[tuple[str, int], Dispatch] = {}
        self.names: list[str] = []
        """Batches that clients have submitted."""
        self.asked: dict[str, Request] = {}
        """Commands by id, those that were answered too."""
        self.replies: dict[str, CommandReply] = {}
        self.states: dict[str, BatchLifecycleState] = {}
        self.finalized: list[BatchRecord] = []
        self.groups: dict[int, list[tuple[str, str]]] = {}
        self.healed = False
        self.facts: Counter[Fact] = Counter()

    # -- the coordinator's process -----------------------------------------------------------------------------------

    def feed(self, *inputs: Input, killed: bool = False) -> None:
        """Hands inputs to the machine; ``killed``: the process dies before it commits, and its successor retries."""
        self.inputs += len(inputs)
        commands = self.machine.handle_all(inputs, self.now)
        changes = self.machine.changes()
        if killed:
            self.restart(committed=False)
            commands = self.machine.handle_all(inputs, self.now)
            changes = self.machine.changes()
        for key, value in changes:
            if value is None:
                self.store.pop(key, None)
            else:
                self.store[key] = value
        for given in inputs:
            self.learn(given, commands)
        for command in commands:
            self.carry_out(command)

    def restart(self, *, committed: bool = True) -> None:
        """The process dies; its successor restores the changelog. If all was committed, nothing at all is lost."""
        before = self.machine
        self.machine = CoordinatorMachine(self.settings)
        self.machine.restore(self.store.items())
        assert self.machine.entries() == self.store
        if committed:
            assert parts_of(self.machine) == parts_of(before)

    # -- the observer ------------------------------------------------------------------------------------------------

    def learn(self, given: Input, commands: list[object]) -> None:
        """Takes note of an input that was delivered."""
        if isinstance(given, TaskArrived):
            if not any(isinstance(c, Refuse) and c.origin == given.origin for c in commands):
                assert given.task.task_id not in self.accepted
                self.accepted[given.task.task_id] = given.task
            return
        if isinstance(given, CommandArrived):
            self.asked[given.command.command_id] = given.command
        if not isinstance(given, EventArrived):
            return
        event = given.event
        if isinstance(event, ExplorerHeartbeat) and not self.is_zombie(event, commands):
            known = self.told.get(event.explorer)
            outstanding = known.outstanding if known and known.incarnation == event.incarnation else set()
            self.told[event.explorer] = Told(
                event.incarnation, event.state, event.slots, event.model_version, outstanding
            )
        elif isinstance(event, RolloutFinished):
            known = self.told.get(event.explorer)
            if known and known.incarnation == event.incarnation:
                known.outstanding.discard((event.task_id, event.attempt))
        elif isinstance(event, WeightsSynced) and event.ok:
            known = self.told.get(event.explorer)
            if known and known.incarnation == event.incarnation:
                known.version = event.version
                known.state = "ready" if known.state == "syncing" else known.state

    @staticmethod
    def is_zombie(event: ExplorerHeartbeat, commands: list[object]) -> bool:
        detail = f"life {event.incarnation} is over"
        return any(isinstance(c, Observe) and c.fact is Fact.ZOMBIE_EXPLORER and c.detail == detail for c in commands)

    def carry_out(self, command: object) -> None:
        match command:
            case Order(record=Dispatch() as dispatch):
                self.check_dispatch(dispatch)
                explorer = self.explorers[dispatch.explorer]
                if explorer.alive and explorer.incarnation == dispatch.incarnation:
                    explorer.running[dispatch.task.task_id, dispatch.attempt] = dispatch
            case Order(record=Cancel() as cancel):
                self.cancel(cancel)
            case BatchMoved() | Answered() | Reply() | Announce():
                self.check_record(command.record)
            case Refuse(refusal=refusal):
                self.refused[refusal.value] += 1
            case Observe(fact=fact, subject=subject):
                self.facts[fact] += 1
                if fact in (Fact.EXPLORER_LOST, Fact.EXPLORER_LEFT):
                    self.told.pop(subject, None)

    def check_record(self, record: BatchRecord | TaskResult | CommandReply | ModelVersion) -> None:
        match record:
            case BatchRecord():
                self.check_batch(record)
            case TaskResult():
                self.check_result(record)
            case CommandReply():
                self.check_reply(record)
            case ModelVersion():
                self.check_announcement(record)

    def cancel(self, cancel: Cancel) -> None:
        explorer, told = self.explorers[cancel.explorer], self.told[cancel.explorer]
        if told.incarnation == cancel.incarnation:
            told.outstanding.discard((cancel.task_id, cancel.attempt))
        if explorer.incarnation == cancel.incarnation and self.rng.random() < 0.7:
            explorer.running.pop((cancel.task_id, cancel.attempt), None)

    def check_dispatch(self, dispatch: Dispatch) -> None:
        told = self.told.get(dispatch.explorer)
        assert told is not None, "dispatched to an explorer that is gone"
        assert (told.incarnation, told.state) == (dispatch.incarnation, "ready")
        assert told.version >= dispatch.min_version
        assert dispatch.task.workflow in WORKFLOWS[dispatch.explorer]
        assert dispatch.task.task_id not in self.results
        runs, per_part = self.settings.group_size, self.settings.max_repeat_times_per_runner or 1024
        parts = -(-runs // per_part)
        assert dispatch.attempt <= self.settings.max_attempts * parts
        assert dispatch.run_id_base % per_part == 0
        assert dispatch.repeat_times == min(per_part, runs - dispatch.run_id_base)
        assert self.dispatched.setdefault((dispatch.task.task_id, dispatch.attempt), dispatch) is dispatch
        told.outstanding.add((dispatch.task.task_id, dispatch.attempt))
        assert len(told.outstanding) <= told.slots, "dispatched beyond capacity"

    def check_batch(self, record: BatchRecord) -> None:
        before = self.states.get(record.batch_id)
        if before is None:
            assert record.state is BatchLifecycleState.PENDING
        else:
            assert record.state in TRANSITIONS[before]
        self.states[record.batch_id] = record.state
        if record.expected_task_count is not None:
            assert record.accepted_task_count <= record.expected_task_count
        assert record.completed_task_count + record.aborted_task_count <= record.accepted_task_count
        assert record.failed_task_count <= record.completed_task_count
        if record.state is not BatchLifecycleState.FINALIZED:
            assert record.state is BatchLifecycleState.ABORTED or not record.manifest
            return
        assert len(record.manifest) == record.completed_task_count + record.aborted_task_count
        assert len({entry.task_id for entry in record.manifest}) == len(record.manifest)
        for entry in record.manifest:
            result = self.results[entry.task_id]
            assert (result.batch_id, result.status, result.parts) == (record.batch_id, entry.status, entry.parts)
        assert record.failed_task_count == sum(entry.status == "failed" for entry in record.manifest)
        assert record.aborted_task_count == sum(entry.status == "aborted" for entry in record.manifest)
        if self.is_eval(record):
            return
        if not record.sequence:
            assert not record.manifest
            return
        for entry in record.manifest:
            if entry.parts:
                assert staleness(record.sequence, entry.version_min) <= self.settings.max_staleness
        assert record.sequence == 1 + len(self.finalized)
        self.finalized.append(record)
        self.to_train.append(record)

    def check_result(self, result: TaskResult) -> None:
        assert result.task_id in self.accepted
        assert self.results.setdefault(result.task_id, result) is result, "a task with two results"
        assert bool(result.parts) == (result.status in ("completed", "partial"))
        assert bool(result.error) == (result.status != "completed")
        orders = [self.dispatched[result.task_id, part.attempt] for part in result.parts]
        assert sorted(order.run_id_base for order in orders) == [order.run_id_base for order in orders]
        assert len({order.run_id_base for order in orders}) == len(orders), "runs that count twice"
        if result.status == "completed":
            assert sum(order.repeat_times for order in orders) == result.total_runs == result.completed_runs
        elif result.status == "partial":
            assert 0 < result.completed_runs < result.total_runs
        for part in result.parts:
            if result.batch_type == "train":
                assert part.position is not None
                where = (result.task_id, part.attempt, part.position.partition, part.position.offset)
                assert where in self.produced, "a result names what nobody produced"

    def check_reply(self, reply: CommandReply) -> None:
        command = self.asked[reply.command_id]
        before = self.replies.setdefault(reply.command_id, reply)
        assert (before.error, before.result) == (reply.error, reply.result), "asked again, answered otherwise"
        if reply.result is not None:
            assert isinstance(command, FinalizeBatch)
            assert self.states[reply.batch_id] is reply.result.state
            assert not TRANSITIONS[reply.result.state]

    @staticmethod
    def is_eval(record: BatchRecord) -> bool:
        return record.batch_type == "eval"

    def check_announcement(self, version: ModelVersion) -> None:
        group = [(member.explorer, member.incarnation) for member in version.members]
        assert self.groups.setdefault(version.epoch, group) == group, "one epoch, two memberships"
        assert version.epoch == max(self.groups), "an epoch comes back"
        assert [member.rank for member in version.members] == list(range(1, len(version.members) + 1))
        for member in version.members:
            assert self.told[member.explorer].incarnation == member.incarnation
            explorer = self.explorers[member.explorer]
            missed = not self.healed and self.rng.random() < 0.1
            if explorer.alive and explorer.incarnation == member.incarnation and not missed:
                explorer.to_sync.append(version)

    def check_always(self) -> None:
        open_train = sum(
            1
            for batch in self.machine.ledger.batches.values()
            if batch.sequence and batch.state in (BatchLifecycleState.RUNNING, BatchLifecycleState.FINALIZING)
        )
        assert open_train <= self.settings.max_inflight_batches
        assert set(self.accepted) == self.machine.ledger.tasks.keys() | self.results.keys()
        assert not self.machine.ledger.tasks.keys() & self.results.keys()

    # -- what may happen ---------------------------------------------------------------------------------------------

    def send(self, sender: str, event: Event) -> None:
        self.queues[sender].append(event)

    def deliver(self, *, killed: bool = False) -> None:
        """The next event of some sender arrives, with some luck several at once."""
        waiting = [queue for queue in self.queues.values() if queue]
        if not waiting:
            return
        events = []
        for _ in range(self.rng.choice((1, 1, 3))):
            queue = self.rng.choice(waiting)
            if queue:
                events.append(queue.popleft())
        self.heard.extend(events)
        # One at a time where the observer needs to know what was decided on which knowledge.
        for event in events:
            self.feed(EventArrived(event), killed=killed)

    def deliver_again(self) -> None:
        if self.heard:
            event = self.rng.choice(self.heard)
            told = self.told.get(event.explorer) if isinstance(event, ExplorerHeartbeat) else None
            if told is None or told.incarnation != event.incarnation or told.version <= event.model_version:
                self.feed(EventArrived(event))

    def new_task(self, *, killed: bool = False) -> None:
        if not self.machine.wants_tasks():
            return
        self.tasks_sent += 1
        kind = self.rng.random()
        number = self.tasks_sent if kind > 0.05 else self.rng.randint(1, self.tasks_sent)
        named = self.rng.random()
        batch_id, batch_type, size = None, "train", None
        if named < 0.2:
            batch_id, size = f"mine-{self.rng.randint(0, self.tasks_sent // 4)}", 3
        elif named < 0.35:
            batch_id, batch_type, size = f"{self.rng.randint(0, self.tasks_sent // 4)}/held-out", "eval", 2
        elif named < 0.55 and self.names:
            batch_id = self.rng.choice(self.names[-4:])
            batch_type = "eval" if batch_id.startswith("eval") else "train"
        task = Task(
            task_id=f"task-{number}",
            workflow=self.rng.choices(["math", "rare", "nobody-has-it"], [20, 3, 1])[0],
            prompt="1 + 1",
            batch_id=batch_id,
            batch_type=batch_type,
            batch_size=size,
            timeout_s=self.rng.choice([None, 5.0]),
        )
        trace = f"trace-{self.tasks_sent}"
        self.feed(TaskArrived(task, Origin(0, self.tasks_sent), trace), killed=killed)

    def client_asks(self, kind: str | None = None, *, killed: bool = False) -> None:
        """Something new, or what was asked before."""
        if self.asked and kind is None and self.rng.random() < 0.1:
            command_id = self.rng.choice(list(self.asked)[-10:])
            self.feed(CommandArrived(self.asked[command_id]), killed=killed)
            return
        kind = kind or self.rng.choices(["submit", "finalize", "abort", "cancel"], [5, 5, 1, 1])[0]
        known = [*self.names[-5:], *list(self.states)[-5:], "unheard-of"]
        asker = {"client": self.rng.choice(["client-0", "client-1"]), "command_id": f"command-{len(self.asked)}"}
        command: Request
        if kind == "submit":
            batch_type = self.rng.choice(["train", "eval"])
            asker["batch_id"] = f"{batch_type}-of-{asker['command_id']}" if self.rng.random() < 0.9 else known[0]
            self.names.append(asker["batch_id"])
            command = SubmitBatch(
                batch_type=batch_type,
                expected_task_count=self.rng.choice([None, 0, 1, 2, 3, 4]),
                min_wait_num=self.rng.choice([None, None, 1, 3]),
                **asker,
            )
        elif kind == "finalize":
            batch_id = self.rng.choice(known)
            command = FinalizeBatch(
                batch_id=batch_id,
                batch_type="eval" if "eval" in batch_id or "held" in batch_id else "train",
                timeout_s=self.rng.choice([None, 0.0, 2.0, 50.0]),
                **asker,
            )
        elif kind == "abort":
            command = AbortBatch(
                batch_id=self.rng.choice(known), reason="why not", keep_partial_results=self.rng.random() < 0.5, **asker
            )
        else:
            command = CancelTasks(
                batch_id=self.rng.choice(known),
                reason="too slow",
                return_partial_tasks=self.rng.random() < 0.5,
                **asker,
            )
        self.feed(CommandArrived(command), killed=killed)

    def explorer_starts(self) -> None:
        explorer = self.rng.choice(list(self.explorers.values()))
        if not explorer.alive:
            explorer.lives += 1
            explorer.alive, explorer.state, explorer.version = True, "ready", -1
            explorer.running.clear()
            explorer.to_sync.clear()
            self.beat(explorer)

    def explorer_dies(self, *, politely: bool = False) -> None:
        explorer = self.rng.choice(list(self.explorers.values()))
        if explorer.alive:
            if politely:
                self.send(explorer.name, ExplorerLeft(explorer=explorer.name, incarnation=explorer.incarnation))
            explorer.alive = False

    def beat(self, explorer: Explorer) -> None:
        self.send(
            explorer.name,
            ExplorerHeartbeat(
                explorer=explorer.name,
                incarnation=explorer.incarnation,
                state=explorer.state,
                slots=explorer.slots,
                model_version=explorer.version,
                workflows=WORKFLOWS[explorer.name],
            ),
        )

    def explorers_beat(self) -> None:
        for explorer in self.explorers.values():
            if explorer.alive:
                self.beat(explorer)
        if self.trainer_lives:
            self.send(
                "trainer",
                TrainerHeartbeat(
                    trainer="trainer",
                    incarnation=f"trainer-life-{self.trainer_lives}",
                    state="ready",
                    model="policy",
                    step=self.step,
                    version=self.step,
                    master_address="127.0.0.1",
                    master_port=1,
                ),
            )

    def explorer_changes_state(self) -> None:
        explorer = self.rng.choice(list(self.explorers.values()))
        explorer.state = self.rng.choice(["ready", "ready", "syncing", "draining"])

    def rollout_ends(self, status: str | None = None) -> None:
        busy = [explorer for explorer in self.explorers.values() if explorer.alive and explorer.running]
        if not busy:
            return
        explorer = self.rng.choice(busy)
        task_id, attempt = self.rng.choice(list(explorer.running))
        dispatch = explorer.running.pop((task_id, attempt))
        broken = ["partial", "failed"] if dispatch.repeat_times > 1 else ["failed", "failed"]
        status = status or self.rng.choices(["completed", *broken], [8, 1, 2])[0]
        position = None
        if status != "failed" and dispatch.batch_type == "train":
            position = Position(partition=0, offset=len(self.produced))
            self.produced.add((task_id, attempt, 0, position.offset))
        self.send(
            explorer.name,
            RolloutFinished(
                explorer=explorer.name,
                incarnation=explorer.incarnation,
                task_id=task_id,
                attempt=attempt,
                batch_id=dispatch.batch_id,
                batch_type=dispatch.batch_type,
                status=status,
                completed_runs={"completed": dispatch.repeat_times, "partial": 1, "failed": 0}[status],
                total_runs=dispatch.repeat_times,
                metrics=[{"reward": self.rng.random()}],
                experience=position,
                samples=0 if position is None else 2,
                version_min=explorer.version,
                version_max=explorer.version,
                error=None if status == "completed" else "ValueError: made up",
            ),
        )

    def weights_arrive(self, *, ok: bool | None = None) -> None:
        syncing = [explorer for explorer in self.explorers.values() if explorer.alive and explorer.to_sync]
        if not syncing:
            return
        explorer = self.rng.choice(syncing)
        version = explorer.to_sync.popleft()
        ok = self.rng.random() < 0.8 if ok is None else ok
        if ok:
            explorer.version = version.version
        self.send(
            explorer.name,
            WeightsSynced(
                explorer=explorer.name,
                incarnation=explorer.incarnation,
                model="policy",
                version=version.version,
                epoch=version.epoch,
                ok=ok,
                checksum=version.checksum if ok else "",
                error=None if ok else "ConnectionError: made up",
            ),
        )

    def trainer_starts(self) -> None:
        """For the first time, or anew from a checkpoint that may be some steps old."""
        if self.trainer_lives > 50:
            return
        self.trainer_lives += 1
        self.step = max(0, self.step - self.rng.choice([0, 0, 1, 2]))
        self.to_train = self.finalized[self.step :]
        self.publish()

    def train(self) -> None:
        if self.trainer_lives and self.to_train:
            batch = self.to_train.pop(0)
            self.step += 1
            assert batch.sequence == self.step
            self.publish()

    def publish(self) -> None:
        self.send(
            "trainer",
            StepTrained(
                trainer="trainer",
                incarnation=f"trainer-life-{self.trainer_lives}",
                model="policy",
                step=self.step,
                version=self.step,
                publish=True,
                checksum=f"sum-of-{self.step}",
                master_address="127.0.0.1",
                master_port=1,
            ),
        )

    def time_passes(self, seconds: float, *, killed: bool = False) -> None:
        self.now += seconds
        self.feed(Tick(), killed=killed)
        sync = self.machine.sync
        assert not sync.state.pending or self.machine._clock.now < sync._deadline, "a sync round outlives its limit"

    # -- the end -----------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Nothing goes wrong any more: everything that can be answered must be."""
        self.healed = True
        for explorer in self.explorers.values():
            explorer.state = "ready"
            if not explorer.alive:
                explorer.lives += 1
                explorer.alive, explorer.version = True, -1
                explorer.running.clear()
                explorer.to_sync.clear()
        if not self.trainer_lives:
            self.trainer_starts()
        quiet = 0
        for _ in range(3000):
            before = (len(self.results), len(self.finalized), len(self.replies), self.step)
            self.explorers_beat()
            while any(self.queues.values()):
                self.deliver()
            while any(e.alive and e.to_sync for e in self.explorers.values()):
                self.weights_arrive(ok=True)
            while any(e.alive and e.running for e in self.explorers.values()):
                self.rollout_ends("completed")
            self.train()
            self.time_passes(1.0)
            self.check_always()
            quiet = quiet + 1 if before == (len(self.results), len(self.finalized), len(self.replies), self.step) else 0
            if quiet > 200 and not any(self.queues.values()):
                break
        self.check_end()

    def check_end(self) -> None:
        ledger = self.machine.ledger
        for task_id in ledger.tasks:
            batch = ledger.batches[ledger.tasks[task_id].batch_id]
            assert batch.state is BatchLifecycleState.PENDING
            assert batch.expected is not None
            assert batch.accepted < batch.expected, "a full batch was never finalized"
        assert self.asked.keys() == self.replies.keys(), "somebody was never answered"
        assert not ledger.running
        assert not self.machine.sync.state.pending
        assert {e.version for e in self.explorers.values()} == {self.machine.sync.version}
        assert self.machine.entries() == self.store
        assert len(ledger.done) <= self.settings.dedup_window + 128


def random_history(seed: int, inputs: int) -> World:
    """Drives a world until its machine has seen this many inputs."""
    rng = random.Random(seed)  # noqa: S311 - histories, not secrets
    world = World(rng, RICH_SETTINGS if seed % 2 else SETTINGS)
    happenings = [
        (22, world.new_task),
        (60, world.deliver),
        (3, world.deliver_again),
        (30, world.rollout_ends),
        (10, world.weights_arrive),
        (8, world.train),
        (10, world.explorers_beat),
        (1.2, world.explorer_starts),
        (0.6, world.explorer_dies),
        (0.3, lambda: world.explorer_dies(politely=True)),
        (0.6, world.explorer_changes_state),
        (0.4, world.trainer_starts),
        (8, lambda: world.time_passes(rng.choice([0.1, 0.5, 2.0]))),
        (0.3, lambda: world.time_passes(rng.choice([-50.0, 30.0, 1e6]))),
        (0.5, world.restart),
        (1, lambda: world.deliver(killed=True)),
        (0.5, lambda: world.new_task(killed=True)),
        (0.5, lambda: world.time_passes(1.0, killed=True)),
        (4, world.client_asks),
        (0.3, lambda: world.client_asks(killed=True)),
    ]
    weights, actions = zip(*happenings, strict=True)
    while world.inputs < inputs:
        for action in rng.choices(actions, weights, k=200):
            action()
        world.check_always()
    return world


@pytest.mark.parametrize("seed", range(0, 8, 2))
def test_laws_hold_in_long_random_histories(seed: int) -> None:
    """In a plain one and a rich one, which together have seen everything that there is."""
    worlds = [random_history(number, inputs=4000) for number in (seed, seed + 1)]
    seen: set[object] = set()
    for world in worlds:
        world.heal()
        assert len(world.finalized) > 30
        seen |= {*world.facts, *world.refused, *(result.status for result in world.results.values())}
        seen |= {reply.error for reply in world.replies.values()}
    assert seen >= {Fact.LATE_RESULT, Fact.EXPLORER_LOST, Fact.ATTEMPT_TIMED_OUT, Fact.SYNC_FAILED, Fact.SECOND_COPY}
    assert seen >= {"completed", "partial", "failed", "aborted", "duplicate_task", "unknown_workflow"}
    assert seen >= {None, "timeout", "unknown_batch", "open_batch"}


class Histories(RuleBasedStateMachine):
    """The same happenings, chosen and shrunk by Hypothesis."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        settings = RICH_SETTINGS if seed % 2 else SETTINGS
        self.world = World(random.Random(seed), settings)  # noqa: S311 - histories, not secrets
        self.world.explorer_starts()
        self.world.trainer_starts()

    @rule(n=st.integers(1, 8), killed=st.booleans())
    def tasks(self, n: int, killed: bool) -> None:
        for _ in range(n):
            self.world.new_task(killed=killed)

    @rule(kind=st.sampled_from([None, "submit", "finalize", "abort", "cancel"]), killed=st.booleans())
    def client_asks(self, kind: str | None, killed: bool) -> None:
        self.world.client_asks(kind, killed=killed)

    @rule(n=st.integers(1, 8), killed=st.booleans())
    def delivered(self, n: int, killed: bool) -> None:
        for _ in range(n):
            self.world.deliver(killed=killed)

    @rule()
    def delivered_again(self) -> None:
        self.world.deliver_again()

    @rule(n=st.integers(1, 6), status=st.sampled_from([None, "completed", "failed"]))
    def rollouts_end(self, n: int, status: str | None) -> None:
        for _ in range(n):
            self.world.rollout_ends(status)

    @rule(ok=st.sampled_from([None, True, False]))
    def weights_arrive(self, ok: bool | None) -> None:
        self.world.weights_arrive(ok=ok)

    @rule()
    def train(self) -> None:
        self.world.train()

    @rule()
    def explorer_starts(self) -> None:
        self.world.explorer_starts()

    @rule(politely=st.booleans())
    def explorer_dies(self, politely: bool) -> None:
        self.world.explorer_dies(politely=politely)

    @rule()
    def explorer_changes_state(self) -> None:
        self.world.explorer_changes_state()

    @rule()
    def trainer_starts(self) -> None:
        self.world.trainer_starts()

    @rule()
    def beats(self) -> None:
        self.world.explorers_beat()

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 1e5, -1e5]), killed=st.booleans())
    def time_passes(self, seconds: float, killed: bool) -> None:
        self.world.time_passes(seconds, killed=killed)

    @rule()
    def coordinator_restarts(self) -> None:
        self.world.restart()

    @invariant()
    def laws_hold(self) -> None:
        if hasattr(self, "world"):
            self.world.check_always()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.heal()


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
