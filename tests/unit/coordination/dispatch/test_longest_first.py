"""Dispatch by expected length: what earlier answers tell, the order in a batch, and the share of each explorer."""

from collections import Counter, deque
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import Dispatch
from tests.support.simulation.harness import Harness, dispatches, facts
from trinity_bus.coordination import Effect, Fact
from trinity_bus.coordination.state.memory import BLOCK_SIZE, Averages
from trinity_bus.coordination.state.store import StateStore

type Place = tuple[str, int, str, int]  # task, attempt, explorer, first run


def places(effects: list[Effect]) -> list[Place]:
    return [(order.task.task_id, order.attempt, order.explorer, order.run_id_base) for order in dispatches(effects)]


def names(effects: list[Effect]) -> list[str]:
    return [order.task.task_id for order in dispatches(effects)]


def knowing(lengths: dict[str, int], **settings: Any) -> Harness:
    """A machine whose only explorer answered these prompts, with so many tokens in each of two runs, and is gone."""
    values = {"batch_size": len(lengths), "group_size": 2, "max_staleness": 9, "max_inflight_batches": 9, **settings}
    harness = Harness(**values).begun(slots=64)
    for prompt in lengths:
        harness.task(f"first-{prompt}", prompt=prompt)
    for prompt, tokens in lengths.items():
        harness.finished(f"first-{prompt}", response_tokens=2 * tokens)
    assert facts(harness.wait(11)) == [Fact.EXPLORER_LOST]
    return harness


def epoch(harness: Harness, prompts: str, **fields: Any) -> None:
    for prompt in prompts:
        assert not dispatches(harness.task(f"again-{prompt}", prompt=prompt, **fields))


@pytest.mark.parametrize(
    ("settings", "expected"), [({}, "bdca"), ({"longest_first": False}, "abcd")], ids=["longest first", "submission"]
)
def test_tasks_that_come_again_are_dispatched_longest_first(settings: dict[str, Any], expected: str) -> None:
    harness = knowing({"a": 10, "b": 40, "c": 20, "d": 30}, **settings)
    epoch(harness, "abcd")
    harness.restart()
    effects = harness.beat("e1", slots=2)
    for number in (0, 1):
        effects += harness.finished(f"again-{expected[number]}", name="e1")
    assert names(effects) == [f"again-{prompt}" for prompt in expected]


def test_of_whom_nothing_is_known_is_of_average_length_and_equals_go_in_order() -> None:
    harness = knowing({"a": 10, "b": 50, "c": 10, "d": 50})
    epoch(harness, "axby")
    assert names(harness.beat("e1", slots=4)) == ["again-b", "again-x", "again-y", "again-a"]


@pytest.mark.parametrize("difference", [{"workflow": "code"}, {"data": {"level": 2}}, {"pool": "judge"}])
def test_other_content_is_another_task(difference: dict[str, Any]) -> None:
    harness = knowing({"a": 10, "b": 40})
    harness.task("other", **{"prompt": "b", **difference})
    harness.task("same", prompt="b", answer="42", timeout_s=5.0)
    other, same = (harness.machine.ledger.tasks[task_id] for task_id in ("other", "same"))
    assert (other.expected, other.is_unknown) == (25, True), "what is usual"
    assert (same.expected, same.is_unknown, same.weight) == (40, False, 160)


def test_a_part_that_has_lost_an_attempt_goes_before_longer_ones() -> None:
    harness = knowing({"a": 10, "b": 40, "c": 20})
    epoch(harness, "abc")
    assert names(harness.beat("e1", slots=1)) == ["again-b"]
    failed: dict[str, Any] = {"status": "failed", "completed_runs": 0, "samples": 0, "experience": None}
    assert names(harness.finished("again-b", name="e1")) == ["again-c"]
    assert names(harness.finished("again-c", name="e1", **failed)) == ["again-c"], "before the rest"


def test_tasks_of_an_open_batch_keep_their_order_because_more_may_always_come() -> None:
    harness = knowing({"a": 10, "b": 40})
    harness.submit("open", expected=None)
    epoch(harness, "ab", batch_id="open")
    assert names(harness.beat("e1", slots=4)) == ["again-a", "again-b"]


def test_with_over_rollout_order_stays_for_what_begins_last_is_given_up() -> None:
    harness = knowing({"a": 10, "b": 40, "c": 20, "d": 30}, over_rollout_ratio=0.5)
    epoch(harness, "abcd")
    assert names(harness.beat("e1", slots=2)) == ["again-a", "again-b"]


def test_explorers_share_expected_work_and_not_attempts() -> None:
    harness = knowing({"a": 30, "b": 30, "c": 90, "d": 30})
    harness.beat("e1", slots=4)
    harness.beat("e2", slots=4)
    epoch(harness, "abc")
    effects = harness.task("again-d", prompt="d")
    assert [(task[-1], explorer) for task, _, explorer, _ in places(effects)] == [
        ("c", "e1"), ("a", "e2"), ("b", "e2"), ("d", "e2"),
    ]  # fmt: skip
    harness.restart()
    assert {e.name: e.work for e in harness.machine.fleet.live()} == {"e1": 200, "e2": 198}
    harness.finished("again-c", name="e1")
    assert {e.name: e.work for e in harness.machine.fleet.live()} == {"e1": 0, "e2": 198}


def test_the_first_part_of_each_group_tells_how_long_the_others_are() -> None:
    harness = Harness(batch_size=2, group_size=3, max_repeat_times_per_runner=1)
    for task_id in ("a", "b"):
        harness.task(task_id, prompt=task_id)
    one: dict[str, Any] = {"completed_runs": 1, "total_runs": 1, "samples": 1}
    begun = places(harness.beat(slots=2))
    assert [(task, run) for task, *_, run in begun] == [("a", 0), ("b", 0)]
    effects = harness.finished("a", **one, response_tokens=10)
    assert [(task, run) for task, *_, run in places(effects)] == [("b", 1)], "it is longer: it has not answered"
    harness.restart()
    effects = harness.finished("b", attempt=2, **one, response_tokens=5)
    assert [(task, run) for task, *_, run in places(effects)] == [("a", 1)], "it is not"
    harness.restart()
    effects = harness.finished("b", **one, response_tokens=50)
    assert [(task, run) for task, *_, run in places(effects)] == [("a", 2)], "the first answer tells"
    effects = harness.finished("a", attempt=2, **one, response_tokens=10)
    assert [(task, run) for task, *_, run in places(effects)] == [("b", 2)]


def play(lengths: list[int], slots: int, per_part: int | None, restarts: Collection[int]) -> tuple[list[Place], bytes]:
    """Three epochs over the same prompts, with restarts after so many answers. Return all dispatches, and the end."""
    harness = Harness(
        batch_size=len(lengths),
        group_size=3,
        max_repeat_times_per_runner=per_part,
        max_staleness=9,
        max_inflight_batches=9,
    )
    for name in ("e0", "e1"):
        harness.beat(name, slots=slots)
    found: list[Place] = []
    running: deque[Dispatch] = deque()

    def take(effects: list[Effect]) -> None:
        found.extend(places(effects))
        running.extend(dispatches(effects))

    answered = 0
    for number in range(3):
        for prompt in range(len(lengths)):
            take(harness.task(f"{number}/{prompt}", prompt=str(prompt)))
        while running:
            order = running.popleft()
            done: dict[str, Any] = dict.fromkeys(("completed_runs", "total_runs", "samples"), order.repeat_times)
            tokens = lengths[int(str(order.task.prompt))] * order.repeat_times
            name, attempt = order.explorer, order.attempt
            take(harness.finished(order.task.task_id, name=name, attempt=attempt, **done, response_tokens=tokens))
            answered += 1
            if answered in restarts:
                harness.restart()
    assert not harness.machine.ledger.tasks
    return found, b"".join(value or b"" for key, value in sorted(harness.store.items()) if key != "books")


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=8),
    st.integers(1, 5),
    st.sampled_from([None, 1, 2]),
    st.sets(st.integers(1, 60)),
)
def test_everything_is_dispatched_once_and_a_restart_changes_nothing(
    lengths: list[int], slots: int, per_part: int | None, restarts: set[int]
) -> None:
    found, end = play(lengths, slots, per_part, ())
    assert (found, end) == play(lengths, slots, per_part, restarts)
    times = Counter((task, first_run) for task, *_, first_run in found)
    parts = -(-3 // (per_part or 3))
    assert times == dict.fromkeys(times, 1)
    assert len(times) == 3 * len(lengths) * parts
    again = [int(task.partition("/")[2]) for task, *_ in found if task.startswith("2/")]
    if parts == 1:
        # Known since the first epoch, all of them.
        assert again == sorted(again, key=lambda prompt: (-lengths[prompt], prompt))


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 2**63 - 1)), max_size=900))
def test_averages_are_bounded_and_found_again(numbers: list[tuple[int, int]]) -> None:
    store, capacity = StateStore(), 2 * BLOCK_SIZE
    averages = Averages("lengths", capacity, store)
    for key, number in numbers:
        averages.add(key, number)
    last = dict.fromkeys(key for key, _ in numbers[-capacity:])
    assert all(averages.get(key) for key in last), "the last are kept"
    assert len(averages) <= capacity + BLOCK_SIZE
    assert sum(len(store.body(key)) for key in store.keys()) <= capacity + BLOCK_SIZE  # noqa: SIM118 - no mapping
    other = StateStore()
    again = Averages("lengths", capacity, other)
    other.load(store.changes(), again.rebuild)
    assert [again.get(key) for key in range(401)] == [averages.get(key) for key in range(401)]
    assert again.mean == averages.mean


def test_the_newest_number_counts_half() -> None:
    averages = Averages("lengths", 10, StateStore())
    assert averages.mean == 0
    averages.add(1, 100)
    averages.add(2, 100)
    averages.add(1, 500)
    assert (averages.get(1), averages.get(2), averages.get(3), averages.mean) == (300, 100, 0, 200)
