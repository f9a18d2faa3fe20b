"""Which attempt goes to which runner, and who is to blame for a death."""

import signal
from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trinity_bus.config import ExplorerSettings
from trinity_bus.runners import pool as do
from trinity_bus.runners.pool import MAX_FAILED_STARTS, QUARANTINE, Pool


def settings_of(**changes: Any) -> ExplorerSettings:
    return ExplorerSettings(**({"runners": 2, "slots": 6, "runner_stuck_s": 3.0, "cancel_grace_s": 5.0} | changes))


def started(effects: list[do.PoolEffect]) -> dict[int, int]:
    """Job to runner."""
    return {effect.job: effect.serial for effect in effects if isinstance(effect, do.StartJob)}


def begun(jobs: int = 0, **changes: int) -> tuple[Pool, dict[int, int]]:
    """A pool whose runners are there, and where its jobs run."""
    pool = Pool(settings_of(**changes))
    for effect in pool.begin():
        assert isinstance(effect, do.StartRunner)
        pool.heard(effect.serial)
    where: dict[int, int] = {}
    for job in range(jobs):
        where |= started(pool.submit(job))
    return pool, where


def test_slots_that_do_not_divide_are_all_used_and_no_runner_is_without() -> None:
    _, where = begun(9, runners=3, slots=5)
    assert sorted(Counter(where.values()).values()) == [1, 2, 2]
    pool, _ = begun(runners=8, slots=2)
    assert len(pool.runners) == 2


def test_suspects_are_many_and_their_processes_few() -> None:
    pool, _ = begun(40, runners=1, slots=40)
    effects = pool.died(0, "ended with status 1")
    assert len(started(effects)) == QUARANTINE
    serial = next(iter(started(effects).values()))
    pool.heard(serial)
    (job,) = [job for job, at in started(effects).items() if at == serial]
    pool.ended(job, 0.0)
    assert len(started(pool.died(serial, "ended with status 0"))) == 1


def test_a_runner_that_answers_nothing_says_where_it_is_and_dies() -> None:
    pool, where = begun(1)
    serial = where[0]
    # One sign of life is enough.
    for _ in range(50):
        assert all(isinstance(effect, do.PingRunner) for effect in pool.tick(0.0, {}))
        pool.heard(0)
        pool.heard(1)
    for _ in range(5):
        assert do.PingRunner(serial) in pool.tick(0.0, {})
        pool.heard(1 - serial)
    (kill,) = [effect for effect in pool.tick(0.0, {}) if isinstance(effect, do.KillRunner)]
    assert (kill.serial, kill.number) == (serial, signal.SIGABRT)
    assert not [effect for effect in pool.tick(0.5, {}) if isinstance(effect, do.KillRunner)]
    assert do.KillRunner(serial, signal.SIGKILL, "it did not end") in pool.tick(1.5, {})
    assert 0 in started(pool.died(serial, "was ended by SIGKILL"))


def test_a_large_runner_leaves_and_a_huge_one_is_killed() -> None:
    idle, _ = begun(runner_max_rss_mib=100)
    # One that has done nothing would be followed by another that is as large.
    assert all(isinstance(effect, do.PingRunner) for effect in idle.tick(0.0, {0: 150.0, 1: 150.0}))
    pool, where = begun(2, runner_max_rss_mib=100)
    effects = pool.tick(0.0, {0: 99.0, 1: 101.0})
    (fork,) = [effect for effect in effects if isinstance(effect, do.StartRunner)]
    (job,) = [job for job, serial in where.items() if serial == 1]
    assert do.CloseRunner(1) in pool.ended(job, 0.0)
    assert {view.serial for view in pool.runners if view.place is not None} == {0, fork.serial}
    (kill,) = [effect for effect in pool.tick(0.0, {0: 201.0}) if isinstance(effect, do.KillRunner)]
    assert (kill.serial, kill.number) == (0, signal.SIGKILL)


def test_runners_that_never_come_up_are_given_up_and_blame_no_job() -> None:
    pool = Pool(settings_of(runners=1))
    (fork,) = pool.begin()
    pool.submit(0)
    assert isinstance(fork, do.StartRunner)
    serial = fork.serial
    for _ in range(MAX_FAILED_STARTS - 1):
        effects = pool.died(serial, "ended with status 1")
        (fork,) = [effect for effect in effects if isinstance(effect, do.StartRunner)]
        assert started(effects) == {0: fork.serial}
        serial = fork.serial
    (gives_up,) = pool.died(serial, "ended with status 1")
    assert isinstance(gives_up, do.GiveUp)
    assert gives_up.why == "3 runners in a row died as they started; the last one ended with status 1"


class AnyHistory(RuleBasedStateMachine):
    """Runners die, hang, grow and answer as they like. The model knows where each job is, and what it has survived."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(settings_of(runner_max_attempts=4, runner_max_rss_mib=100))
        self.alive: set[int] = set()
        self.where: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.waiting: set[int] = set()
        self.deaths: Counter[int] = Counter()
        self.gone: set[int] = set()
        self.next_job = 0
        self.now = 0.0
        self.do(self.pool.begin())

    def do(self, effects: list[do.PoolEffect]) -> None:
        for effect in effects:
            match effect:
                case do.StartRunner(serial):
                    assert serial not in self.alive
                    self.alive.add(serial)
                    # That none comes up is another test's.
                    self.pool.heard(serial)
                case do.StartJob(serial, job):
                    assert serial in self.alive
                    self.waiting.remove(job)
                    self.where[job] = serial
                case do.FailJob(job, _):
                    assert self.deaths[job] >= 2
                    self.waiting.remove(job)
                    self.gone.add(job)
                case do.CloseRunner(serial):
                    assert serial in self.alive
                    assert serial not in self.where.values()
                case do.CancelJob(serial, job):
                    assert self.where[job] == serial
                case do.GiveUp():
                    raise AssertionError(effect)

    @rule()
    def submit(self) -> None:
        job = self.next_job
        self.next_job += 1
        self.waiting.add(job)
        self.do(self.pool.submit(job))

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.where:
            job = data.draw(st.sampled_from(sorted(self.where)))
            self.pool.heard(self.where.pop(job))
            self.cancelled.discard(job)
            self.gone.add(job)
            self.do(self.pool.ended(job, self.now))

    @rule(data=st.data(), at_once=st.booleans())
    def cancel(self, data: st.DataObject, at_once: bool) -> None:
        known = sorted(self.waiting | self.where.keys())
        if known:
            job = data.draw(st.sampled_from(known))
            if job in self.waiting:
                self.waiting.remove(job)
                self.gone.add(job)
            else:
                self.cancelled.add(job)
            self.do(self.pool.cancel(job, self.now, at_once=at_once))

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        serial = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.remove(serial)
        for job in [job for job, at in self.where.items() if at == serial]:
            del self.where[job]
            self.deaths[job] += 1
            if job in self.cancelled:
                self.cancelled.remove(job)
                self.gone.add(job)
            else:
                self.waiting.add(job)
        self.do(self.pool.died(serial, "died"))

    @rule(passed=st.floats(0, 3), heard=st.booleans(), rss=st.sampled_from([50.0, 150.0, 250.0]), data=st.data())
    def tick(self, passed: float, heard: bool, rss: float, data: st.DataObject) -> None:
        self.now += passed
        serial = data.draw(st.sampled_from(sorted(self.alive)))
        if heard:
            self.pool.heard(serial)
        self.do(self.pool.tick(self.now, {serial: rss}))

    @invariant()
    def places_are_taken_and_slots_are_kept(self) -> None:
        views = self.pool.runners
        assert [view.place for view in views if view.place is not None] == [0, 1]
        assert {view.serial for view in views} == self.alive
        assert {job: view.serial for view in views for job in view.jobs} == self.where
        assert len(self.where) <= 6
        assert not self.gone & (self.where.keys() | self.waiting)

    def teardown(self) -> None:
        """Whatever happened: when the runners behave from now on, every job that is left has its end."""
        for _ in range(200):
            for serial in sorted(self.alive):
                view = next(view for view in self.pool.runners if view.serial == serial)
                if view.state == "stopping" and not view.jobs:
                    self.alive.remove(serial)
                    self.do(self.pool.died(serial, "ended"))
            if not self.where:
                break
            job = min(self.where)
            del self.where[job]
            self.do(self.pool.ended(job, self.now))
        assert not self.where
        assert not self.waiting


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=100, stateful_step_count=40)
