"""Whole runs under each sync style: the machine is the real one, explorers, trainer and log are simulated.

Everything is ready at once and happens in random order; explorers die and come back, and the coordinator is restored
from its changelog again and again. Whatever happens, every batch gets trained and no sample is older than allowed.
"""

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest

from schemas import BatchLifecycleState, BatchRecord, Dispatch, ModelVersion, PublishVersion, VersionWanted
from tests.support.simulation.harness import Harness
from tests.support.simulation.workers import Explorer, Running
from trinity_bus.coordination import Effect, Fact, Observe, SyncPolicy, Write

type Method = Literal["gloo", "memory", "checkpoint"]
METHODS: tuple[Method, ...] = ("gloo", "memory", "checkpoint")
BATCHES = 14
BATCH_SIZE = 4


class Mesh(Harness):
    """One run of ``BATCHES`` train batches."""

    def __init__(self, explorers: int, seed: int, **settings: Any) -> None:
        super().__init__(**{"batch_size": BATCH_SIZE, "max_attempts": 100, "explorer_timeout_s": 1e6, **settings})
        self.rng = random.Random(seed)  # noqa: S311 - histories, not secrets
        self.policy = SyncPolicy.of(self.synchronizer, self.settings)
        self.explorers = {f"e{i}": Explorer(f"e{i}", slots=3, workflows=["math"]) for i in range(explorers)}
        for explorer in self.explorers.values():
            explorer.start()
        self.method: Method = "gloo"
        self.step, self.published, self.wanted = 0, -1, 0
        self.trainer_incarnation = "t1"
        self.to_bring_back: deque[int] = deque()
        self.choices = 0
        self.to_train: deque[BatchRecord] = deque()
        self.drawn: dict[str, set[int]] = {}  # batch to the versions that drew it
        self.finalized: list[BatchRecord] = []

        self.facts: list[Observe] = []

    def _handle(self, given: Any) -> list[Effect]:
        self.now += 0.001
        effects = super()._handle(given)
        for effect in effects:
            match effect:
                case Write(record=Dispatch() as order):
                    explorer = self.explorers[order.explorer]
                    if explorer.incarnation == order.incarnation:
                        assert explorer.version >= order.min_version
                        explorer.running[order.task.task_id, order.attempt] = Running(order, explorer.version)
                case Write(record=ModelVersion() as version):
                    self.announced(version)
                case Write(record=VersionWanted() as wanted) if wanted.version is None:
                    self.wanted = max(self.wanted, wanted.at_least)
                    self.publish_if_due()
                case Write(record=VersionWanted(version=int() as older)):
                    self.to_bring_back.append(older)
                case Write(record=BatchRecord() as record) if record.state is BatchLifecycleState.FINALIZED:
                    self.finalized.append(record)
                    self.to_train.append(record)
                case Observe():
                    self.facts.append(effect)
                case _:
                    pass
        return effects

    def announced(self, version: ModelVersion) -> None:
        assert version.method == self.method

        for member in version.members:
            if self.explorers[member.explorer].incarnation == member.incarnation:
                self.explorers[member.explorer].to_sync.append(version)

    def die(self, explorer: Explorer) -> None:
        explorer.start()
        self.event(explorer.beat())

    def sync(self, explorer: Explorer) -> None:
        version = explorer.to_sync.popleft()
        explorer.serve(version.version)
        self.event(explorer.synced(version, ok=True))

    def finish(self, explorer: Explorer) -> None:
        name = self.rng.choice(list(explorer.running))
        running = explorer.running[name]
        self.drawn.setdefault(running.dispatch.batch_id, set()).update((running.version_min, explorer.version))
        self.sent += 1
        self.event(explorer.finish(name, "completed", self.rng, self.sent)[0])

    def train(self) -> None:
        batch = self.to_train.popleft()
        self.step += 1
        assert batch.sequence == self.step

        if not self.publish_if_due():
            self.tell(publish=False)

    def publish_if_due(self) -> bool:
        asked = {"published": self.published, "wanted": self.wanted}
        due = self.published < self.step and self.policy.publishes(self.step, **asked)
        if due:
            self.published = self.step

            self.tell(publish=True)
        return due

    def choose(self, version: int | None) -> None:
        self.choices += 1
        self.command(PublishVersion(client="me", command_id=f"c{self.choices}", model="policy", version=version))

    def bring_back(self) -> None:
        self.tell(publish=True, again=self.to_bring_back.popleft())

    def tell(self, *, publish: bool, again: int | None = None) -> None:
        version = self.step if again is None else again
        of: dict[str, Any] = {"method": self.method, "publish": publish, "again": again is not None}
        self.trained(version, self.trainer_incarnation, **of)

    def begin(self, tasks: int) -> None:
        for explorer in self.explorers.values():
            self.event(explorer.beat())
        self.published = 0
        self.tell(publish=True)
        for number in range(tasks):
            self.task(f"t{number}")

    def run(self, *, deaths: float = 0.0, restarts: float = 0.0, choices: float = 0.0) -> None:
        self.begin(BATCHES * BATCH_SIZE)
        idle = 0
        while self.step < BATCHES:
            if self.something_happens(choices):
                idle = 0
            else:
                idle += 1
                assert idle < 400, f"nobody can go on after step {self.step}"
                # Batches may wait for the newest version: somebody must ask for it.
                if choices:
                    self.choose(None)
                self.wait(1)
            for explorer in self.explorers.values():
                self.event(explorer.beat())
            if self.rng.random() < deaths:
                self.die(self.rng.choice(list(self.explorers.values())))
            if self.rng.random() < restarts:
                self.restart()

    def something_happens(self, choices: float) -> bool:
        explorers = self.explorers.values()
        actions: list[Callable[[], None]] = [partial(self.finish, e) for e in explorers if e.running]
        actions += [partial(self.sync, e) for e in explorers if e.to_sync]
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


def mesh(values: dict[str, Any], explorers: int, seed: int, **settings: int) -> Mesh:
    bound = {} if values["sync_style"] == "fixed" else {"max_staleness": 3}
    return Mesh(explorers, seed, **values, **bound, **settings)


@pytest.mark.parametrize("explorers", [1, 2, 5])
@pytest.mark.parametrize("values", STYLES, ids=lambda v: "-".join(str(x) for x in v.values()))
def test_every_batch_is_trained_within_the_bound_whatever_dies(values: dict[str, Any], explorers: int) -> None:
    for seed in range(6):
        run = mesh(values, explorers, seed, max_inflight_batches=1 + seed % 3)
        # Each way of moving weights, with and without deaths.
        run.method = METHODS[seed % 3]
        run.run(deaths=0.02 if seed % 2 else 0.0, restarts=0.02 if seed > 2 else 0.0)
        run.check()


@pytest.mark.parametrize("values", STYLES, ids=lambda v: "-".join(str(x) for x in v.values()))
def test_going_back_and_forth_loses_no_batch_and_keeps_the_bound(values: dict[str, Any]) -> None:
    choices = 0
    for seed in range(4):
        run = mesh(values, 2, seed, max_inflight_batches=1 + seed % 3)
        run.run(choices=0.05, deaths=0.01 if seed % 2 else 0.0, restarts=0.02)
        run.check()
        choices += run.choices
    assert choices


@pytest.mark.parametrize("explorers", [1, 2, 5])
@pytest.mark.parametrize("values", [v for v in STYLES if v["sync_style"] == "fixed"], ids=str)
def test_with_fixed_every_token_of_a_batch_is_drawn_by_the_version_that_it_needs(
    values: dict[str, Any], explorers: int
) -> None:
    for seed in range(4):
        run = mesh(values, explorers, seed, max_inflight_batches=2 + seed % 2)
        run.run()
        run.check()
        for record in run.finalized:
            assert run.drawn[record.batch_id] == {run.policy.version_needed(record.sequence)}


def test_without_work_that_needs_the_old_version_the_last_one_reaches_the_explorers() -> None:
    run = mesh({"sync_style": "fixed", "sync_interval": 2, "sync_offset": 1}, 2, 0)
    run.run()
    assert run.published == BATCHES
    run.wait(1)
    assert run.machine.sync.version == BATCHES


def test_with_explorer_driven_a_trainer_that_starts_anew_is_asked_again() -> None:
    run = mesh({"sync_style": "explorer_driven", "sync_interval": 2}, 1, 0)
    run.begin(2 * BATCH_SIZE)
    explorer = run.explorers["e0"]
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
