"""The machine's small parts: clock, window, staleness, limits, the order of batches, what is kept page by page, how
groups are split, and that the largest records can be sent.
"""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import BatchLifecycleState as State
from schemas import CommandReply, ManifestEntry, Position, ResultPart, Task
from schemas.batch import MAX_BATCH_PARTS, MAX_BATCH_TASKS
from schemas.codec import encode
from schemas.command import BatchResult
from schemas.experience import MAX_SAMPLES
from schemas.record import MAX_ID_LENGTH, MAX_VERSION
from schemas.task import MAX_REPEAT_TIMES
from schemas.topic import ROOM
from schemas.topics import BATCHES
from tests.support.simulation.harness import Harness, batches, dispatches, statuses
from trinity_bus.awake import SteadyClock
from trinity_bus.config import CoordinatorSettings, KafkaSettings
from trinity_bus.config.mesh import MAX_RECORD_MIB, MIN_RECORD_MIB
from trinity_bus.coordination import TRANSITIONS, IllegalTransitionError, Origin
from trinity_bus.coordination.batches.batch import Batch, enough, moved
from trinity_bus.coordination.batches.dispatch_queue import batch_priority
from trinity_bus.coordination.batches.parts import AVERAGE, Attempt, split
from trinity_bus.coordination.batches.tasks import OpenTask, Result
from trinity_bus.coordination.dispatch.explorer import Explorer
from trinity_bus.coordination.dispatch.placement import FreeSlots
from trinity_bus.coordination.limits import (
    MAX_ERROR_BYTES,
    MAX_METRIC_NAME,
    MAX_METRIC_NAME_BYTES,
    MAX_METRICS,
    MAX_SLOTS,
    bounded,
    parts_allowed,
    short_error,
)
from trinity_bus.coordination.pools import kind_of
from trinity_bus.coordination.state.memory import (
    BLOCK_SIZE,
    PAGE_BYTES,
    PAGE_ITEMS,
    Memory,
    ResultPages,
    TaskPages,
    Window,
)
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
    wide = {f"{'\N{GRINNING FACE}' * 196}{i:04}": float(i) for i in range(MAX_METRICS)}
    assert list(bounded(wide)) == list(wide)[: MAX_METRIC_NAME_BYTES // (4 * 196 + 4)]
    assert bounded({"x" * 1000: 1.0, "y": 2.0}) == {"y": 2.0}


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
        task = OpenTask("b", number, Origin(0, 0), None, 8, None, given)
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


LARGE = (1 << 53) - 1


@given(st.integers(1, MAX_REPEAT_TIMES), st.none() | st.integers(1, MAX_REPEAT_TIMES))
def test_the_parts_of_a_group_are_its_runs_in_order(runs: int, per_part: int | None) -> None:
    parts = split(runs, per_part)
    assert [run for part in parts for run in range(part.run_id_base, part.run_id_base + part.runs)] == list(range(runs))
    assert all(part.runs == (per_part or runs) for part in parts[:-1])
    assert [part.index for part in parts] == list(range(len(parts)))


@given(st.data(), st.integers(MIN_RECORD_MIB, MAX_RECORD_MIB))
def test_every_task_may_have_two_parts_and_all_together_fit_a_batch(data: st.DataObject, record_mib: int) -> None:
    settings = CoordinatorSettings(max_record_mib=record_mib)
    expected = data.draw(st.integers(1, settings.max_batch_tasks))
    assert 2 <= parts_allowed(expected, settings.max_batch_parts) <= settings.max_batch_parts // expected


def test_today_s_records_hold_as_many_tasks_and_parts_as_ever() -> None:
    settings = CoordinatorSettings()
    assert (settings.max_batch_tasks, settings.max_batch_parts) == (MAX_BATCH_TASKS, MAX_BATCH_PARTS)


@given(st.integers(1, 1000), st.floats(0, 0.999))
def test_enough_tasks_are_some_and_never_more_than_all(expected: int, ratio: float) -> None:
    assert enough("eval", expected, ratio) is None
    wanted = enough("train", expected, ratio)
    assert wanted is None if ratio == 0 else wanted is not None and 1 <= wanted <= expected


@given(st.lists(st.integers(0, PAGE_BYTES), max_size=100))
def test_pages_hold_everything_in_order_and_none_is_too_large(sizes: list[int]) -> None:
    store = StateStore()
    pages = ResultPages(store)
    for size in sizes:
        pages.add("b", bytes(size))
    assert list(store.keys()) == [f"results/{number}/b" for number in range(len(list(store.keys())))]
    kept = [store.body(key) for key in store.keys()]  # noqa: SIM118 - no mapping
    assert [len(item) for page in kept for item in page] == sizes
    for page in kept:
        assert len(page) <= PAGE_ITEMS
        assert len(page) == 1 or sum(map(len, page)) <= PAGE_BYTES
    other = StateStore()
    again = ResultPages(other)
    other.kinds["results"].load({f"{number}/b": page for number, page in reversed([*enumerate(kept)])})
    assert list(again.rebuild()) == (["b"] if sizes else [])
    assert list(again.of("b")) == list(pages.of("b"))
    for some in (pages, again):
        some.add("b", b"x")
    assert sorted(other.keys()) == sorted(store.keys())
    pages.remove("b")
    assert list(store.keys()) == []


@given(st.lists(st.sampled_from(["add", "turn", "remove"]), max_size=150), st.randoms(use_true_random=False))
def test_a_page_of_tasks_is_kept_until_all_of_them_have_ended(steps: list[str], rng: Any) -> None:
    store = StateStore()
    pages = TaskPages(store)
    open_tasks: dict[str, str] = {}
    changelog: dict[str, Any] = {}
    for order, step in enumerate(steps):
        if step == "add":
            open_tasks[f"t{order}"] = pages.add(order, f"t{order}", f"t{order}".encode())
        elif step == "turn":
            pages.turn()
        elif open_tasks:
            task_id = rng.choice(list(open_tasks))
            pages.remove(open_tasks.pop(task_id), task_id)
        for key in store.take():
            value = store.body(key)
            changelog[key] = list(value) if isinstance(value, list) else value
    alive = {key: value for key, value in changelog.items() if value is not None}
    assert alive.keys() == set(store.keys())
    found = {
        item.decode(): key.partition("/")[2]
        for key, items in alive.items()
        if key.startswith("tasks/")
        for place, item in enumerate(items)
        if not alive.get(key.replace("tasks", "ended"), 0) >> place & 1
    }
    assert found == open_tasks


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), max_size=100))
def test_what_is_remembered_is_bounded_and_the_last_is_in_it(added: list[tuple[int, int]]) -> None:
    store = StateStore()
    memory: Memory[bytes] = Memory("outcomes", bytes, 10, 100, store)
    entries: dict[str, Any] = {}
    for name, size in added:
        known = memory.get(f"n{name}")
        memory.add(f"n{name}", bytes(size))
        assert memory.get(f"n{name}") == (bytes(size) if known is None else known)
        entries |= {key: store.body(key) for key in store.take()}
        kept = [store.body(key) for key in store.keys()]  # noqa: SIM118 - no mapping
        assert len(memory) == len(kept) <= 10
        assert len(kept) == 1 or sum(len(entry[1]) for entry in kept if entry) <= 100
    other = StateStore()
    again: Memory[bytes] = Memory("outcomes", bytes, 10, 100, other)
    other.kinds["outcomes"].load({k.partition("/")[2]: entry for k, entry in entries.items() if entry is not None})
    again.rebuild()
    assert list(other.keys()) == list(store.keys())
    assert len(again) == len(memory)


def entry(number: int, parts: int) -> ManifestEntry:
    part = ResultPart(attempt=LARGE, samples=MAX_SAMPLES, position=Position(partition=2**31, offset=LARGE))
    versions = {"version_min": MAX_VERSION, "version_max": MAX_VERSION}
    name, error = f"{number:0{MAX_ID_LENGTH}}", "e" * MAX_ERROR_BYTES
    return ManifestEntry(task_id=name, status="completed", parts=[part] * parts, error=error, **versions)


@pytest.mark.parametrize(
    ("record_mib", "tasks"),
    [(MAX_RECORD_MIB, 1), (MAX_RECORD_MIB, 5000), (MAX_RECORD_MIB, MAX_BATCH_TASKS), (8, 7168), (5, 1), (5, 4096)],
)
def test_the_largest_batch_can_be_sent(record_mib: int, tasks: int) -> None:
    in_batch = CoordinatorSettings(max_record_mib=record_mib).max_batch_parts
    limit = KafkaSettings(max_record_mib=record_mib).max_message_bytes(BATCHES) - ROOM
    batch = Batch("b" * MAX_ID_LENGTH, "train", tasks, 1, min_wait_num=tasks, state=State.FINALIZED)
    metrics = {f"{'\N{GRINNING FACE}' * (MAX_METRIC_NAME - 30)}{number}": 0.1 for number in range(MAX_METRICS)}
    for number in range(tasks):
        manifest = entry(number, min(parts_allowed(tasks, in_batch), MAX_REPEAT_TIMES))
        result = Result(number, manifest, metrics if number == 0 else {}, traceparent="t" * 128)
        batch.keep(result)
        batch.count(result)
    record = batch.record(reason="r" * MAX_ERROR_BYTES, with_results=True)
    assert len(encode(record)) <= limit
    assert len(record.manifest) == tasks
    of = {"batch_id": record.batch_id, "batch_type": "train", "state": record.state}
    result_of = BatchResult(**of, finished_task_count=tasks, metrics=record.metrics)
    encode(CommandReply(client="c" * 200, command_id="c" * 200, batch_id=record.batch_id, result=result_of))


def test_the_largest_result_of_a_task_can_be_sent() -> None:
    harness = Harness(batch_size=1, group_size=MAX_REPEAT_TIMES, max_repeat_times_per_runner=1)
    harness.beat(slots=10 * MAX_SLOTS)
    assert harness.machine.fleet.explorers["e0"].slots == MAX_SLOTS
    commands = harness.task("x" * MAX_ID_LENGTH)
    started = len(dispatches(commands))
    while harness.machine.has_more:
        started += len(dispatches(harness.machine.handle_all((), harness.now)))
    assert started == MAX_REPEAT_TIMES
    metrics = {f"{'\N{GRINNING FACE}' * (MAX_METRIC_NAME - 5)}{number:05}": 0.1 for number in range(MAX_METRICS)}
    for attempt in range(1, MAX_REPEAT_TIMES + 1):
        one: dict[str, Any] = dict.fromkeys(("completed_runs", "total_runs", "samples"), 1)
        told = [metrics] if attempt < 3 else []
        commands = harness.finished("x" * MAX_ID_LENGTH, attempt=attempt, metrics=told, **one)
    assert [status for _, status in statuses(commands)] == ["completed"]
    assert [b.state for b in batches(commands)] == ["finalizing", "finalized"]
    for command in commands:
        if hasattr(command, "record"):
            encode(command.record)
    assert short_error("x" * 10_000).endswith("...")
