"""What keeps decisions short where there are very many explorers: heaps, bounds, and fewer heartbeats."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas import Dispatch, SetPace, Task
from schemas.event import MAX_PACE_S, MISSED
from tests.support.effects import written
from tests.support.simulation.harness import Harness, dispatches, facts
from trinity_bus.coordination import Effect, Fact, Origin
from trinity_bus.coordination.batches.parts import Attempt
from trinity_bus.coordination.batches.tasks import OpenTask
from trinity_bus.coordination.dispatch.dispatcher import MOST_STARTED
from trinity_bus.coordination.dispatch.explorer import Explorer
from trinity_bus.coordination.dispatch.fleet import OWN_PACE_S, pace
from trinity_bus.coordination.dispatch.placement import FreeSlots
from trinity_bus.coordination.pools import kind_of

NAMES = ["a", "b", "c", "d", "e"]
changes = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from(["ready", "syncing"]),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from([("math",), ("math", "code")]),
)


def paces(effects: list[Effect]) -> dict[str, float]:
    told = written(effects, SetPace)
    assert all(isinstance(record, SetPace) for record in told)
    return {record.explorer: record.pace_s for record in told}


@given(
    st.lists(changes, max_size=40),
    st.none() | st.sampled_from(NAMES),
    st.none() | st.sampled_from(NAMES),
    st.sets(st.sampled_from(NAMES)),
    st.integers(0, 2),
)
@example([(name, "ready", 2, 0, 1, ("math", "code")) for name in "ab"], "a", None, {"a"}, 0)  # not where it failed
def test_the_heaps_find_whom_a_look_at_everybody_finds(
    history: list[tuple[str, str, int, int, int, tuple[str, ...]]],
    failed_on: str | None,
    beside: str | None,
    homes: set[str],
    min_version: int,
) -> None:
    given = Task(task_id="t", workflow="code", prompt="1")
    task = OpenTask("b", 1, Origin(0, 0), None, 4, 2, given)
    task.kind = kind_of(given, "policy")
    task.homes = dict.fromkeys(homes, 1)
    task.parts[0].failed_on = failed_on
    free_slots, known = FreeSlots(), dict[str, Explorer]()
    for name, state, slots, busy, version, workflows in history:
        one = known[name] = Explorer(name, "life", state, slots, version, workflows)  # type: ignore[arg-type]
        one.assigned = {(f"{name}-{i}", 1): Attempt(f"{name}-{i}", 0, 1, 1.0) for i in range(busy)}
        one.work = sum(attempt.weight for attempt in one.assigned.values())
        free_slots.changed(one)
    able = [e for e in known.values() if e.free > 0 and e.version >= min_version and task.kind in e.kinds]
    expected = min(
        (e for e in able if e.name != beside),
        key=lambda e: (e.name == failed_on, -e.version, e.name not in homes, e.load, e.name),
        default=None,
    )
    room = free_slots.of(min_version, trained=True)
    assert (task.kind in room.kinds) == bool(able)
    assert room.find(task, task.parts[0], beside=beside) is expected
    assert room.find(task, task.parts[0], beside=beside) is expected, "looking changes nothing"
    assert bool(free_slots) == any(e.free > 0 for e in known.values())


@pytest.mark.parametrize(
    ("explorers", "before", "after"),
    [
        *((1, 0, 0), (1000, 0, 0), (1001, 0, 1), (4000, 0, 2), (4001, 2, 4), (1500, 4, 1), (2001, 4, 4)),
        *((10_000, 0, 8), (10**9, 0, MAX_PACE_S)),
    ],
)
def test_the_pace_bounds_all_heartbeats_does_not_swing_and_has_an_end(
    explorers: int, before: float, after: float
) -> None:
    assert pace(explorers, 2000, before) == after
    assert explorers / max(after, OWN_PACE_S) <= 2000 or after == MAX_PACE_S


def test_explorers_are_told_their_pace_until_they_keep_it_and_old_ones_are_not() -> None:
    harness = Harness(explorer_beats_per_s=1)
    assert paces(harness.beat("e0", pace_s=0.0)) == {"e0": 1.0}
    assert paces(harness.beat("old")) == {}
    assert paces(harness.beat("e0", pace_s=1.0)) == {"e0": 2.0}
    assert paces(harness.beat("e0", pace_s=2.0)) == {}


def test_who_keeps_a_slow_pace_is_given_the_time_of_three_heartbeats() -> None:
    harness = Harness(explorer_timeout_s=4.0)
    harness.beat("slow", pace_s=4.0)
    harness.beat("fast", pace_s=0.0)
    assert facts(harness.wait(5)) == [Fact.EXPLORER_LOST]
    assert [e.name for e in harness.machine.fleet.live()] == ["slow"]
    harness.restart()
    harness.beat("slow", pace_s=4.0)
    assert facts(harness.wait(MISSED * 4)) == []
    assert facts(harness.wait(1)) == [Fact.EXPLORER_LOST]


def test_one_decision_starts_so_many_attempts_and_says_that_there_is_more() -> None:
    harness = Harness(batch_size=1, max_inflight_batches=1000, max_staleness=1000)
    for number in range(MOST_STARTED + 44):
        harness.task(f"t{number}")
    first = dispatches(harness.beat("e0", slots=1000))
    assert len(first) == MOST_STARTED
    assert harness.machine.has_more
    rest: list[Dispatch] = dispatches(harness.machine.handle_all((), harness.now))
    assert len(rest) == 44
    assert not harness.machine.has_more
