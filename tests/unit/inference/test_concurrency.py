"""How many attempts an explorer asks for: laws of the controller, and where it comes to on a simulated engine."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinity_bus.inference.concurrency import BACK_OFF, QUEUE_S, RAISE_S, ConcurrencyController, EngineLoad

IDLE = EngineLoad(kv_usage=0.0, running=0, waiting=0, preempted=0, version=0)
LOADS = st.builds(
    EngineLoad, kv_usage=st.floats(0, 1), running=st.integers(0, 300), waiting=st.integers(0, 300),
    preempted=st.integers(0, 5), version=st.integers(0, 2),
)  # fmt: skip


@given(
    st.integers(1, 100),
    st.integers(1, 100),
    st.lists(st.tuples(LOADS, st.integers(0, 120), st.floats(0.1, 3)), max_size=40),
)
def test_the_limit_stays_in_its_bounds_and_moves_for_a_reason_alone(
    most: int, least: int, told: list[tuple[EngineLoad, int, float]]
) -> None:
    controller, now, preempted = ConcurrencyController(most, least), 0.0, 0
    for load, in_flight, passed in told:
        now += passed
        preempted += load.preempted
        before = controller.limit
        after = controller.observe(replace(load, preempted=preempted), in_flight, now)
        assert min(least, most) <= after <= most
        if after > before:
            assert load.waiting == 0
            assert in_flight >= before
        if after < before:
            assert load.preempted or load.waiting > 0
        if in_flight == 0 and after < before:
            assert after == min(least, most)


def simulated(controller: ConcurrencyController, bears: int, seconds: float) -> list[int]:
    """FAKE engine of room for so many attempts, with a backlog without end: an attempt takes 5 s; more make it preempt.

    Returns the limits, each half a second.
    """
    ends: list[float] = []
    limits, preempted, now = [], 0, 0.0
    while now < seconds:
        now += 0.5
        ends = [end for end in ends if end > now]
        ends += [now + 5 + (len(ends) + i) % 7 * 0.1 for i in range(controller.limit - len(ends))]
        over = max(0, len(ends) - bears)
        preempted += over
        load = EngineLoad(min(1.0, len(ends) / bears), min(len(ends), bears), over, preempted, 0)
        limits.append(controller.observe(load, len(ends), now))
    return limits


@pytest.mark.parametrize("bears", [3, 10, 40, 1000])
def test_it_comes_to_what_the_engine_bears_and_stays_there(bears: int) -> None:
    limits = simulated(ConcurrencyController(64, 1), bears, 300)
    settled = limits[len(limits) // 2 :]
    assert max(settled) <= min(64, bears + 2)
    assert min(settled) >= min(64, bears * BACK_OFF - 2)


def test_a_burst_is_no_queue_and_a_queue_that_lasts_is() -> None:
    controller, burst = ConcurrencyController(64, 1), replace(IDLE, running=8, waiting=200)
    assert controller.observe(burst, 64, 0.0) == 64
    assert controller.observe(burst, 64, QUEUE_S / 2) == 64
    assert controller.observe(burst, 64, QUEUE_S) == 51
    # Attempts that run are let run: it falls no further before they have come down to it.
    assert controller.observe(burst, 60, 2 * QUEUE_S) == 51
    assert controller.observe(burst, 51, 3 * QUEUE_S) == 40


def test_room_is_taken_step_by_step_and_only_where_it_is_asked_for() -> None:
    controller = ConcurrencyController(64, 1)
    controller.observe(IDLE, 64, 0.0)
    assert controller.observe(replace(IDLE, preempted=1), 64, 10.0) == 51
    calm = replace(IDLE, preempted=1, running=50)
    assert controller.observe(calm, 51, 10.0 + RAISE_S / 2) == 51
    assert controller.observe(calm, 20, 10.0 + RAISE_S) == 51
    assert controller.observe(calm, 51, 10.0 + RAISE_S) == 53


def test_what_another_version_takes_from_the_cache_is_no_congestion() -> None:
    controller = ConcurrencyController(64, 1)
    controller.observe(IDLE, 64, 0.0)
    assert controller.observe(replace(IDLE, version=1), 64, 1.0) == 64
    assert controller.observe(replace(IDLE, version=1, preempted=9), 64, 1.5) == 64
    assert controller.observe(replace(IDLE, version=1, preempted=10), 64, 1.0 + QUEUE_S) == 51


def test_requests_of_gateways_are_in_flight_too_and_cost_the_attempts_their_slots_once() -> None:
    controller, crowded = ConcurrencyController(64, 1), replace(IDLE, running=8, waiting=200)
    for second in range(4):
        controller.observe(crowded, 4 + 100, second * QUEUE_S)
    # Attempts alone would have gone down to one: those that are in flight are under every limit.
    assert controller.limit == 51
    assert controller.observe(crowded, 4 + 47, 4 * QUEUE_S) == 40


def test_a_congested_engine_takes_no_more_requests_than_it_keeps_of_either_kind() -> None:
    controller, crowded = ConcurrencyController(8, 2), replace(IDLE, running=1, waiting=20)
    assert controller.bears(1000)
    controller.observe(crowded, 8, 0.0)
    assert controller.bears(1000)
    controller.observe(crowded, 8, QUEUE_S)
    assert [controller.bears(requests) for requests in (0, 1, 2, 1000)] == [True, True, False, False]
    controller.observe(crowded, 5, QUEUE_S + 1)
    assert controller.bears(2) == (controller.limit > 5)
    controller.observe(IDLE, 8, QUEUE_S + 2)
    assert controller.bears(1000)
