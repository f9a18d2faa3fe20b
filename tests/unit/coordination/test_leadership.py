"""Who leads: coordinators that are killed, stopped, cut off and started anew, around a log that fences."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trinity_bus.coordination import Leader, Leadership, Role
from trinity_bus.coordination.leadership import LeadershipError

TAKEOVER_S = 1.5
HEARTBEAT_S = 0.5
STEP_S = 0.1  # how often each of them acts
SETTLED_S = 60.0  # more than enough for any race to end


def leadership(name: str = "me", *, share: float = 0.0, leader: Leader | None = None) -> Leadership:
    one = Leadership(name=name, incarnation=f"{name}-life", takeover_s=TAKEOVER_S, share=share, now=0.0)
    one.progress(0.0, leader)
    return one


OTHER = Leader("other", "other-life", "active")


def test_one_that_finds_no_leader_takes_over_at_once() -> None:
    assert leadership().is_due(0.0)
    assert leadership(leader=Leader("other", "other-life", "left")).is_due(0.0)


def test_a_sign_of_life_is_any_progress_and_silence_is_counted_from_the_last() -> None:
    one = leadership(leader=OTHER)
    for tenth in range(100):
        assert not one.is_due(tenth / 10)
        one.progress(tenth / 10, OTHER)
    for tenth in range(100, 114):
        assert not one.is_due(tenth / 10)
    assert one.is_due(11.5)


def test_one_that_was_itself_stopped_hears_no_silence() -> None:
    one = leadership(leader=OTHER)
    assert not one.is_due(1.0)
    assert not one.is_due(3600.0)
    one.progress(3600.0, OTHER)
    assert not one.is_due(3601.0)


def test_whoever_cannot_read_counts_silence_anew() -> None:
    one = leadership(leader=OTHER)
    for tenth in range(100):
        one.out_of_touch(tenth / 10)
        assert not one.is_due(tenth / 10)
    assert one.failing_s == pytest.approx(9.9)
    one.in_touch(10.0)
    assert one.failing_s == 0.0
    assert one.standby_s > TAKEOVER_S, "whoever works has to find its way back, too"
    one.progress(10.0, OTHER)
    assert one.standby_s == TAKEOVER_S


def test_one_that_is_fenced_after_it_has_led_is_at_its_end() -> None:
    one = leadership()
    one.take_over(0.0)
    one.lead(0.1)
    now = 0.1
    while now < TAKEOVER_S + 0.2:
        now += STEP_S
        one.committed(now)
    one.fenced(now)
    one.progress(now, one.entry("active"))
    # Nobody has taken over: its transaction was open for too long.
    alone = one.role
    one.progress(now, OTHER)
    assert (alone, one.role) == (Role.STANDBY, Role.FENCED)
    with pytest.raises(LeadershipError, match="me is fenced"):
        one.is_due(now)


def test_one_whose_transaction_was_open_for_too_long_leads_again() -> None:
    one = leadership()
    now = 0.0
    for _ in range(5):
        one.take_over(now)
        one.lead(now)
        for _ in range(20):
            now += STEP_S
            one.committed(now)
        one.fenced(now)
        one.progress(now, one.entry("active"))
        while not one.is_due(now):
            now += STEP_S
    assert now < 20.0


def test_one_that_loses_a_race_stands_by_again_and_longer_each_time() -> None:
    one = leadership()
    waited = []
    for _ in range(3):
        one.take_over(0.0)
        one.fenced(0.0)
        assert one.role is Role.STANDBY
        waited.append(one.standby_s)
    assert waited == [TAKEOVER_S, 2 * TAKEOVER_S, 4 * TAKEOVER_S]
    one.progress(0.0, OTHER)
    assert one.standby_s == TAKEOVER_S, "the race is over"


def test_one_that_the_log_fails_goes_on_soon_unless_another_has_taken_over() -> None:
    one = leadership()
    one.take_over(0.0)
    one.lead(0.0)
    one.broken(1.0)
    one.progress(1.0, one.entry("active"))
    assert one.standby_s < TAKEOVER_S
    one.progress(1.0, OTHER)
    assert one.standby_s == TAKEOVER_S


def test_what_fails_again_and_again_is_counted_from_the_first_time() -> None:
    one = leadership()
    now = 0.0
    for _ in range(10):
        one.take_over(now)
        one.lead(now)
        now += 0.3
        one.broken(now)
        now += 0.3
        one.in_touch(now)
    assert one.failing_s == pytest.approx(now - 0.3)


@dataclass
class Log:
    """The broker: one may write, all read what was committed. Fencing is what makes it safe, whoever guesses wrong."""

    epoch: int = 0
    entries: list[tuple[int, Leader]] = field(default_factory=list)
    reachable: bool = True


class Process:
    """One coordinator around the log, as ``workers.coordinator`` runs it.

    It takes over in two steps, so that races happen.
    """

    def __init__(self, log: Log, name: str, share: float, now: float) -> None:
        self.log = log
        self.one = Leadership(name=name, incarnation=f"{name}@{now}", takeover_s=TAKEOVER_S, share=share, now=now)
        self.read = 0
        self.epoch = -1
        self.beat_at = 0.0
        self.stopped = False
        self._follow(now)

    @property
    def over(self) -> bool:
        return self.one.role in {Role.FENCED, Role.LEFT}

    def act(self, now: float) -> None:
        if self.stopped or self.over:
            return
        if not self.log.reachable:
            if self.one.role is Role.STANDBY:
                self.one.out_of_touch(now)
            return
        match self.one.role:
            case Role.STANDBY:
                self._follow(now)
                if self.one.is_due(now):
                    self.one.take_over(now)
                    self.log.epoch += 1
                    self.epoch = self.log.epoch
            case Role.TAKING_OVER:
                if self._commit(now, "active"):
                    self.one.lead(now)
            case Role.ACTIVE:
                if now >= self.beat_at + HEARTBEAT_S and self._commit(now, "active"):
                    self.one.committed(now)

    def leave(self, now: float) -> None:
        if self.one.role is not Role.ACTIVE or self._commit(now, "left"):
            self.one.leave(now)

    def _follow(self, now: float) -> None:
        self.one.in_touch(now)
        if self.read < len(self.log.entries) or self.read == 0:
            self.read = len(self.log.entries)
            self.one.progress(now, self.log.entries[-1][1] if self.log.entries else None)

    def _commit(self, now: float, state: str) -> bool:
        if self.epoch != self.log.epoch:
            self.one.fenced(now)
            return False
        self.beat_at = now
        self.log.entries.append((self.epoch, self.one.entry(state)))  # type: ignore[arg-type]
        return True


class World:
    """Four of them, some alive, and the log."""

    def __init__(self, shares: list[float]) -> None:
        self.log = Log()
        self.now = 0.0
        self.alive: dict[int, Process] = {}
        self._shares = shares

    def do(self, what: str, number: int) -> None:
        process = self.alive.get(number)
        match what:
            case "pass":
                self.pass_time(number)
            case "cut" | "mend":
                self.log.reachable = what == "mend"
            case "start" if self.log.reachable:
                self.start(number)
            case "kill":
                self.alive.pop(number, None)
            case "stop" | "go on" if process is not None:
                process.stopped = what == "stop"
            case "leave" if process is not None and not process.over and self.log.reachable:
                process.leave(self.now)

    def start(self, number: int) -> None:
        if number not in self.alive or self.alive[number].over:
            self.alive[number] = Process(self.log, f"c{number}", self._shares[number], self.now)

    def pass_time(self, steps: int) -> None:
        for _ in range(steps):
            self.now += STEP_S
            for process in self.alive.values():
                process.act(self.now)

    def heal(self) -> None:
        self.log.reachable = True
        for number in range(len(self._shares)):
            self.start(number)
            self.alive[number].stopped = False

    def leaders(self) -> list[Process]:
        return [p for p in self.alive.values() if p.one.role is Role.ACTIVE and p.epoch == self.log.epoch]


ACTIONS = st.one_of(
    st.tuples(st.just("pass"), st.integers(1, 40)),
    st.tuples(st.sampled_from(["kill", "stop", "go on", "start", "leave"]), st.integers(0, 3)),
    st.tuples(st.sampled_from(["cut", "mend"]), st.just(0)),
)


@settings(max_examples=200)
@given(
    shares=st.lists(st.floats(0, 0.999), min_size=4, max_size=4),
    actions=st.lists(ACTIONS, max_size=40),
    jump_s=st.floats(0, 1000),
)
def test_whatever_happens_only_the_last_to_fence_writes_and_in_the_end_one_leads_for_good(
    shares: list[float], actions: list[tuple[str, int]], jump_s: float
) -> None:
    world = World(shares)
    for what, number in actions:
        world.do(what, number)
    world.now += jump_s
    world.heal()
    world.pass_time(round(SETTLED_S / STEP_S))
    settled = len(world.log.entries)
    (leader,) = world.leaders()
    world.pass_time(round(SETTLED_S / STEP_S))
    assert {entry.incarnation for _, entry in world.log.entries[settled:]} == {leader.one.incarnation}
    epochs = [epoch for epoch, _ in world.log.entries]
    assert epochs == sorted(epochs)
    others = [process for process in world.alive.values() if process is not leader and not process.over]
    assert all(process.one.role is Role.STANDBY for process in others)
