"""Whole runs under each sync style: the machine is the real one, explorers, trainer and log are simulated.

Everything is ready at once and happens in random order; explorers die and come back, and the coordinator is restored
from its changelog again and again. Whatever happens, every batch gets trained and no sample is older than allowed.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import pytest

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    Dispatch,
    ExplorerHeartbeat,
    ModelVersion,
    Position,
    PublishVersion,
    RolloutFinished,
    StepTrained,
    Task,
    VersionWanted,
    WeightsSynced,
)
from trinity_bus.config import CoordinatorSettings, SynchronizerSettings
from trinity_bus.coordination import (
    CommandArrived,
    CoordinatorMachine,
    EventArrived,
    Fact,
    Observe,
    Origin,
    SyncPolicy,
    TaskArrived,
    Tick,
    Write,
)
from trinity_bus.coordination.inputs import Event, Input

type Method = Literal["gloo", "memory", "checkpoint"]
METHODS: tuple[Method, ...] = ("gloo", "memory", "checkpoint")
BATCHES = 14
BATCH_SIZE = 4


@dataclass
class Explorer:
    name: str
    incarnations: int = 1
    version: int = -1
    running: list[Dispatch] = field(default_factory=list)
    drawn_by: list[int] = field(default_factory=list)
    """The version that each of ``running`` began with."""
    to_sync: deque[ModelVersion] = field(default_factory=deque)

    @property
    def incarnation(self) -> str:
        return f"life-{self.incarnations}"

    @property
    def sender(self) -> dict[str, Any]:
        return {"explorer": self.name, "incarnation": self.incarnation}


class Mesh:
    """One run of ``BATCHES`` train batches."""

    def __init__(
        self, synchronizer: SynchronizerSettings, settings: CoordinatorSettings, explorers: int, rng: random.Random
    ) -> None:
        self.rng = rng
        self.settings, self.synchronizer = settings, synchronizer
        self.policy = SyncPolicy.of(synchronizer, settings)
        self.machine = CoordinatorMachine(settings, synchronizer)
        self.store: dict[str, bytes] = {}
        self.now = 0.0
        self.explorers = [Explorer(f"e{i}") for i in range(explorers)]
        self.method: Method = "gloo"
        self.step, self.published, self.wanted = 0, -1, 0
        self.trainer_incarnation = "t1"
        self.to_bring_back: deque[int] = deque()
        self.choices = 0
        self.to_train: deque[BatchRecord] = deque()
        self.drawn: dict[str, set[int]] = {}
        """Batch to the versions that drew it."""
        self.finalized: list[BatchRecord] = []
        self.timeline: list[str] = []
        self.facts: list[Observe] = []

    def feed(self, given: Input) -> None:
        self.now += 0.001
        commands = self.machine.handle(given, self.now)
        for key, value in self.machine.changes():
            if value is None:
                self.store.pop(key, None)
            else:
                self.store[key] = value
        for command in commands:
            match command:
                case Write(record=Dispatch() as dispatch):
                    self.dispatched(dispatch)
                case Write(record=ModelVersion() as announced):
                    self.announced(announced)
                case Write(record=VersionWanted() as wanted) if wanted.version is None:
                    self.wanted = max(self.wanted, wanted.at_least)
                    self.publish_if_due()
                case Write(record=VersionWanted() as wanted):
                    assert wanted.version is not None
                    self.to_bring_back.append(wanted.version)
                case Write(record=BatchRecord() as record) if record.state is BatchLifecycleState.FINALIZED:
                    self.finalized.append(record)
                    self.to_train.append(record)
                    self.timeline.append(f"batch {record.sequence}")
                case Observe():
                    self.facts.append(command)
                case _:
                    pass

    def dispatched(self, dispatch: Dispatch) -> None:
        for explorer in self.explorers:
            if (explorer.name, explorer.incarnation) == (dispatch.explorer, dispatch.incarnation):
                assert explorer.version >= dispatch.min_version
                explorer.running.append(dispatch)
                explorer.drawn_by.append(explorer.version)

    def announced(self, announced: ModelVersion) -> None:
        assert announced.method == self.method
        if not self.timeline or self.timeline[-1] != f"sync v{announced.version}":
            self.timeline.append(f"sync v{announced.version}")
        members = {(member.explorer, member.incarnation) for member in announced.members}
        for explorer in self.explorers:
            if (explorer.name, explorer.incarnation) in members:
                explorer.to_sync.append(announced)

    def event(self, event: Event) -> None:
        self.feed(EventArrived(event))

    # -- what can happen ---------------------------------------------------------------------------------------------

    def restart(self) -> None:
        self.machine = CoordinatorMachine(self.settings, self.synchronizer)
        self.machine.restore(self.store.items())
        assert self.machine.entries() == self.store

    def beat(self, explorer: Explorer) -> None:
        of = {"slots": 3, "model_version": explorer.version, "workflows": ["math"]}
        self.event(ExplorerHeartbeat(**explorer.sender, state="ready", **of))

    def die(self, explorer: Explorer) -> None:
        explorer.incarnations += 1
        explorer.version = -1
        explorer.running.clear()
        explorer.drawn_by.clear()
        explorer.to_sync.clear()
        self.beat(explorer)

    def sync(self, explorer: Explorer) -> None:
        announced = explorer.to_sync.popleft()
        explorer.version = announced.version
        of = {"version": announced.version, "epoch": announced.epoch, "checksum": announced.checksum}
        self.event(WeightsSynced(**explorer.sender, model="policy", ok=True, **of))

    def finish(self, explorer: Explorer) -> None:
        at = self.rng.randrange(len(explorer.running))
        order, drawn_by = explorer.running.pop(at), explorer.drawn_by.pop(at)
        self.drawn.setdefault(order.batch_id, set()).update((drawn_by, explorer.version))
        done = dict.fromkeys(("completed_runs", "total_runs", "samples"), 8)
        of: dict[str, Any] = {"task_id": order.task.task_id, "attempt": order.attempt, "batch_id": order.batch_id}
        drawn: dict[str, Any] = {"version_min": drawn_by, "version_max": explorer.version}
        drawn |= {"experience": Position(partition=0, offset=0), "batch_type": "train", "status": "completed"}
        self.event(RolloutFinished(**explorer.sender, **of, **done, **drawn))

    def train(self) -> None:
        batch = self.to_train.popleft()
        self.step += 1
        assert batch.sequence == self.step
        self.timeline.append(f"step {self.step}")
        if not self.publish_if_due():
            self.tell(publish=False)

    def publish_if_due(self) -> bool:
        asked = {"published": self.published, "wanted": self.wanted}
        due = self.published < self.step and self.policy.publishes(self.step, **asked)
        if due:
            self.published = self.step
            self.timeline.append(f"publish v{self.step}")
            self.tell(publish=True)
        return due

    def choose(self, version: int | None) -> None:
        self.choices += 1
        command = PublishVersion(client="me", command_id=f"c{self.choices}", model="policy", version=version)
        self.feed(CommandArrived(command))

    def bring_back(self) -> None:
        self.tell(publish=True, again=self.to_bring_back.popleft())

    def tell(self, *, publish: bool, again: int | None = None) -> None:
        version = self.step if again is None else again
        of: dict[str, Any] = {"trainer": "trainer", "incarnation": self.trainer_incarnation, "model": "policy"}
        at: dict[str, Any] = {"master_address": "127.0.0.1", "master_port": 1, "method": self.method}
        of |= {"step": version, "version": version, "checksum": f"sum-{version}", "again": again is not None}
        self.event(StepTrained(**of, **at, publish=publish))

    # -- a whole run -------------------------------------------------------------------------------------------------

    def run(self, *, deaths: float = 0.0, restarts: float = 0.0, choices: float = 0.0) -> None:
        for explorer in self.explorers:
            self.beat(explorer)
        self.published = 0
        self.tell(publish=True)
        for number in range(BATCHES * BATCH_SIZE):
            self.feed(TaskArrived(Task(task_id=f"t{number}", workflow="math", prompt="1"), Origin(0, number)))
        idle = 0
        while self.step < BATCHES:
            if self.something_happens(choices):
                idle = 0
            else:
                idle += 1
                assert idle < 400, f"nobody can go on: {self.timeline[-12:]}"
                # Batches may wait for the newest version: somebody must ask for it.
                if choices:
                    self.choose(None)
                self.now += 0.5
                self.feed(Tick())
            for explorer in self.explorers:
                self.beat(explorer)
            if self.rng.random() < deaths:
                self.die(self.rng.choice(self.explorers))
            if self.rng.random() < restarts:
                self.restart()

    def something_happens(self, choices: float) -> bool:
        actions: list[Callable[[], None]] = [partial(self.finish, e) for e in self.explorers if e.running]
        actions += [partial(self.sync, e) for e in self.explorers if e.to_sync]
        if self.to_train:
            actions.append(self.train)
        if self.to_bring_back:
            actions.append(self.bring_back)
        if actions:
            self.rng.choice(actions)()
            if self.rng.random() < choices:
                self.choose(self.rng.choice([None, self.rng.randint(0, self.published)]))
        return bool(actions)

    def check(self) -> None:
        assert [record.sequence for record in self.finalized] == list(range(1, BATCHES + 1))
        for record in self.finalized:
            assert not record.failed_task_count
            for entry in record.manifest:
                assert record.sequence - 1 - entry.version_min <= self.policy.staleness_bound
        waiting = [seen for seen in self.facts if seen.fact is Fact.STARVED and "was chosen" not in seen.detail]
        assert not waiting


STYLES: list[dict[str, Any]] = [
    {"sync_style": "fixed"},
    {"sync_style": "fixed", "sync_offset": 1},
    {"sync_style": "fixed", "sync_interval": 2, "sync_offset": 1},
    {"sync_style": "fixed", "sync_interval": 3, "sync_offset": 2},
    {"sync_style": "fixed", "explorer_sync_interval": 4, "trainer_sync_interval": 1},
    {"sync_style": "fixed", "explorer_sync_interval": 2, "trainer_sync_interval": 3},
    {"sync_style": "explorer_driven", "sync_interval": 2},
    {"sync_style": "explorer_driven", "sync_interval": 2, "sync_offset": 2},
    {"sync_style": "trainer_driven", "sync_interval": 1},
    {"sync_style": "trainer_driven", "sync_interval": 3},
    {"sync_style": "fully_async"},
    {"sync_style": "fully_async", "sync_interval": 4},
]


def mesh(values: dict[str, object], explorers: int, seed: int, **settings: int) -> Mesh:
    bound = {} if values["sync_style"] == "fixed" else {"max_staleness": 3}
    return Mesh(
        SynchronizerSettings.model_validate(values),
        CoordinatorSettings(batch_size=BATCH_SIZE, max_attempts=100, explorer_timeout_s=1e6, **bound, **settings),
        explorers,
        random.Random(seed),  # noqa: S311 - histories, not secrets
    )


@pytest.mark.parametrize("explorers", [1, 2, 5])
@pytest.mark.parametrize("values", STYLES, ids=lambda v: "-".join(str(x) for x in v.values()))
def test_every_batch_is_trained_within_the_bound_whatever_dies(values: dict[str, object], explorers: int) -> None:
    for seed in range(6):
        run = mesh(values, explorers, seed, max_inflight_batches=1 + seed % 3)
        # Each way of moving weights, with and without deaths.
        run.method = METHODS[seed % 3]
        run.run(deaths=0.02 if seed % 2 else 0.0, restarts=0.02 if seed > 2 else 0.0)
        run.check()


@pytest.mark.parametrize("values", STYLES, ids=lambda v: "-".join(str(x) for x in v.values()))
def test_going_back_and_forth_loses_no_batch_and_keeps_the_bound(values: dict[str, object]) -> None:
    for seed in range(4):
        run = mesh(values, 2, seed, max_inflight_batches=1 + seed % 3)
        run.run(choices=0.05, deaths=0.01 if seed % 2 else 0.0, restarts=0.02)
        run.check()
        assert run.choices


@pytest.mark.parametrize("explorers", [1, 2, 5])
@pytest.mark.parametrize("values", [v for v in STYLES if v["sync_style"] == "fixed"], ids=str)
def test_with_fixed_every_token_of_a_batch_is_drawn_by_the_version_that_it_needs(
    values: dict[str, object], explorers: int
) -> None:
    for seed in range(4):
        run = mesh(values, explorers, seed, max_inflight_batches=2 + seed % 2)
        run.run()
        run.check()
        for record in run.finalized:
            assert run.drawn[record.batch_id] == {run.policy.version_needed(record.sequence)}


@pytest.mark.parametrize("explorers", [1, 2, 5])
def test_the_timeline_of_interval_two_and_offset_one(explorers: int) -> None:
    run = mesh({"sync_style": "fixed", "sync_interval": 2, "sync_offset": 1}, explorers, 0)
    run.run()
    explorers_side = [what for what in run.timeline if what.startswith(("batch", "sync"))]
    trainers_side = [what for what in run.timeline if what.startswith(("step", "publish"))]
    assert explorers_side[:9] == [
        "sync v0", "batch 1", "batch 2", "batch 3", "sync v2", "batch 4", "batch 5", "sync v4", "batch 6",
    ]  # fmt: skip
    assert trainers_side[:6] == ["step 1", "step 2", "publish v2", "step 3", "step 4", "publish v4"]


def test_without_work_that_needs_the_old_version_the_last_one_reaches_the_explorers() -> None:
    run = mesh({"sync_style": "fixed", "sync_interval": 2, "sync_offset": 1}, 2, 0)
    run.run()
    assert run.published == BATCHES
    run.feed(Tick())
    assert run.machine.sync.version == BATCHES


def test_with_explorer_driven_a_trainer_that_starts_anew_is_asked_again() -> None:
    run = mesh({"sync_style": "explorer_driven", "sync_interval": 2}, 1, 0)
    explorer = run.explorers[0]
    run.beat(explorer)
    run.tell(publish=True)
    run.published = 0
    for number in range(2 * BATCH_SIZE):
        run.feed(TaskArrived(Task(task_id=f"t{number}", workflow="math", prompt="1"), Origin(0, number)))
    run.sync(explorer)
    while explorer.running:
        run.finish(explorer)
    assert (len(run.finalized), run.wanted) == (2, 1)
    run.wanted = 0
    run.trainer_incarnation = "t2"
    run.tell(publish=True)
    assert run.wanted == 1
    run.train()
    assert run.published == 1
