from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.health.process import HealthState, Phase


def working(now: float = 0.0) -> HealthState:
    state = HealthState(now, wedged_s=10, start_s=100, unread_s=60)
    state.phase = Phase.WORKING
    return state


def test_a_start_may_hold_the_loop_for_a_while_and_later_it_must_turn() -> None:
    state = HealthState(0.0, wedged_s=10, start_s=100, unread_s=60)
    assert state.alive(99.0).ok
    assert not state.ready(99.0, None).ok
    assert state.alive(101.0).reason == "still starting after 101 s, the limit is 100 s"
    state = working()
    state.turned(50.0)
    assert state.alive(60.0).ok
    assert state.ready(60.0, None).ok
    assert state.alive(60.5).reason == "the event loop has not turned for 10.5 s, limit 10 s"
    assert not state.ready(60.5, None).ok


@pytest.mark.parametrize(
    ("change", "broker", "reason"),
    [
        ({}, "no broker answers at kafka:9092", "no broker answers at kafka:9092"),
        ({"waiting": "a record has waited for 12 s"}, None, "a record has waited for 12 s"),
        ({"phase": Phase.STOPPING}, None, "stopping"),
    ],
    ids=["a lost broker", "records that wait", "one that stops"],
)
def test_what_fails_readiness_only(change: dict[str, Any], broker: str | None, reason: str) -> None:
    state = working()
    assert state.ready(1.0, None).ok
    for name, value in change.items():
        setattr(state, name, value)
    assert state.alive(1.0).ok
    assert state.ready(1.0, broker).reason == reason


def test_a_service_that_reads_nothing_of_what_is_there_is_alive_and_not_ready() -> None:
    state = working()
    state.turned(200.0)
    state.reading("the inputs", 100.0, keeps_up=False)
    state.reading("the orders", 100.0, keeps_up=True)
    assert state.ready(160.0, None).ok, "it counts from when it was looked at first"
    state.reading("the inputs", 160.5, keeps_up=False)
    assert state.ready(161.0, None).reason == "nothing was read of the inputs for 61 s, the limit is 60 s"
    assert state.alive(161.0).ok
    state.reading("the inputs", 161.0, keeps_up=True)
    state.done_reading("the orders")
    assert state.ready(205.0, None).ok
    state.done_reading("never heard of")


@given(
    phase=st.sampled_from(Phase), turned=st.floats(0, 1000), now=st.floats(0, 1000), broker=st.none() | st.just("gone")
)
def test_what_is_ready_is_alive(phase: Phase, turned: float, now: float, broker: str | None) -> None:
    state = HealthState(0.0, wedged_s=10, start_s=100, unread_s=60)
    state.phase = phase
    state.turned(turned)
    if state.ready(now, broker).ok:
        assert state.alive(now).ok
        assert broker is None
        assert phase is Phase.WORKING
