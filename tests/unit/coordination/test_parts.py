"""The machine's small parts: clock, window, staleness, limits, and the order of batches."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import BatchLifecycleState as State
from schemas import Task
from trinity_bus.awake import SteadyClock
from trinity_bus.coordination import TRANSITIONS, IllegalTransitionError, Origin
from trinity_bus.coordination.batches.batch import Batch, moved
from trinity_bus.coordination.batches.dispatch_queue import batch_priority
from trinity_bus.coordination.batches.parts import AVERAGE, Attempt
from trinity_bus.coordination.batches.tasks import AcceptedTask, OpenTask
from trinity_bus.coordination.dispatch.explorer import Explorer
from trinity_bus.coordination.dispatch.placement import FreeSlots
from trinity_bus.coordination.limits import (
    MAX_ERROR_BYTES,
    MAX_METRIC_NAME_BYTES,
    MAX_METRICS,
    bounded,
    short_error,
)
from trinity_bus.coordination.pools import kind_of
from trinity_bus.coordination.state.memory import BLOCK_SIZE, Window
from trinity_bus.coordination.state.store import StateStore
from trinity_bus.coordination.sync_policy import required_version, staleness


@given(st.lists(st.floats(-1e9, 1e9)), st.floats(0.01, 100))
def test_the_clock_never_runs_backward_and_never_jumps(readings: list[float], longest: float) -> None:
    clock, before = SteadyClock(longest), 0.0
    for reading in readings:
        now = clock.advance(reading)
        assert before <= now <= before + longest * (1 + 1e-9)
        before = now


def test_the_clock_counts_ordinary_steps_exactly() -> None:
    clock = SteadyClock(5.0)
    assert [clock.advance(reading) for reading in (100.0, 101.5, 104.0, 90.0, 91.0, 1000.0)] == [0, 1.5, 4, 4, 5, 10]


@given(st.integers(1, 10_000), st.integers(0, 100))
def test_the_required_version_is_the_oldest_that_keeps_the_bound(sequence: int, bound: int) -> None:
    version = required_version(sequence, bound)
    assert staleness(sequence, version) <= bound
    assert version == 0 or staleness(sequence, version - 1) > bound


def test_the_window_remembers_what_it_promises_and_a_block_more_at_most() -> None:
    store = StateStore()
    window = Window("done", 300, store)
    for number in range(2000):
        window.add(f"task-{number}")
        window.add(f"task-{number}")
        assert all(f"task-{kept}" in window for kept in range(max(0, number - 299), number + 1))
        assert len(window) <= 300 + BLOCK_SIZE
    assert "task-1500" not in window
    touched = store.take()
    assert set(store.keys()) <= set(touched)

    other = StateStore()
    again = Window("done", 300, other)
    other.kinds["done"].load({name: store.body(f"done/{name}") for name in store.kinds["done"].names()})
    again.rebuild()
    assert len(again) == len(window)
    again.add("task-2000")
    assert "task-2000" in again


def test_a_smaller_window_forgets_on_restore_and_says_so() -> None:
    store = StateStore()
    window = Window("done", 100, store)
    blocks = {"10": [f"b-{i}" for i in range(BLOCK_SIZE)], "9": [f"a-{i}" for i in range(BLOCK_SIZE)]}
    store.kinds["done"].load(blocks)
    window.rebuild()
    assert "a-0" not in window
    assert "b-0" in window
    assert store.take() == ["done/9"]


def test_errors_are_cut_by_bytes_without_breaking_characters() -> None:
    assert short_error("short") == "short"
    cut = short_error("\N{SNOWMAN}" * 1000)
    assert cut.endswith("...")
    assert len(cut.encode()) <= MAX_ERROR_BYTES
    assert short_error("\udcff") == "\udcff"


def test_metrics_are_bounded_in_number_and_length_of_names() -> None:
    many = {f"m{i}": float(i) for i in range(MAX_METRICS + 5)}
    assert list(bounded(many)) == list(many)[:MAX_METRICS]
    assert bounded({"x" * 1000: 1.0, "y": 2.0}) == {"y": 2.0}
    wide = {f"{'\N{GRINNING FACE}' * 196}{i:04}": float(i) for i in range(MAX_METRICS)}
    assert list(bounded(wide)) == list(wide)[: MAX_METRIC_NAME_BYTES // (4 * 196 + 4)]


def batch(batch_id: str, sequence: int = 0, number: int = 1) -> Batch:
    return Batch(batch_id, "train" if sequence else "eval", 1, number, sequence=sequence)


def test_train_steps_come_before_their_evaluation_and_before_the_next_step() -> None:
    batches = [batch("final"), batch("2/held"), batch("b", 3), batch("a", 2), batch("1/held"), batch("z", 1)]
    assert [b.batch_id for b in sorted(batches, key=batch_priority)] == ["z", "1/held", "a", "2/held", "b", "final"]
    # Open batches have no sequence; of those, too, train goes first.
    opened = [batch("2/held@s", number=1), Batch("2@s", "train", None, 2), Batch("1@s", "train", None, 3)]
    assert [b.batch_id for b in sorted(opened, key=batch_priority)] == ["1@s", "2@s", "2/held@s"]


def test_room_is_fair_over_many_tasks() -> None:
    explorers = [Explorer(name, "life", "ready", slots, 0, ("math",)) for name, slots in (("a", 30), ("b", 10))]
    free_slots = FreeSlots()
    for one in explorers:
        free_slots.changed(one)
    for number in range(20):
        given = Task(task_id=f"t{number}", workflow="math", prompt="1")
        task = OpenTask(AcceptedTask("b", number, Origin(0, 0), None, 8, None, given), page="1", size=100)
        task.kind = kind_of(given, "policy")
        taker = free_slots.of(0, trained=True).place(task, task.parts[0])
        taker.assigned = {**taker.assigned, (task.task_id, 1): Attempt(task.task_id, 0, 1, 1.0)}
        taker.work += AVERAGE
        free_slots.changed(taker)
    assert [len(e.assigned) for e in explorers] == [15, 5], "the share that is taken counts, not the number"


def test_exactly_the_legal_transitions_of_a_batch_can_be_made() -> None:
    legal = {
        State.PENDING: {State.RUNNING, State.FINALIZING, State.ABORTED},
        State.RUNNING: {State.FINALIZING, State.ABORTED},
        State.FINALIZING: {State.FINALIZED, State.ABORTED},
    }
    for source, target in itertools.product(State, State):
        if target in legal.get(source, ()):
            assert moved(source, target) is target
        else:
            with pytest.raises(IllegalTransitionError, match=f"{source} cannot become {target}"):
                moved(source, target)
    with pytest.raises(TypeError):
        TRANSITIONS[State.FINALIZED] = frozenset(State)  # type: ignore[index]
