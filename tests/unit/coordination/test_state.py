"""The state in tables: what is changed is written, what is written is read, and what is not known stays."""

import random
from collections.abc import Mapping
from typing import Any, ClassVar

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.simulation import World, draw_settings
from tests.support.simulation.histories import happen
from trinity_bus.config import SynchronizerSettings
from trinity_bus.coordination import CoordinatorMachine, StateError
from trinity_bus.coordination.state.codec import FRAMING, OLDEST_LEVEL, StateCodec, Value, unpack
from trinity_bus.coordination.state.store import StateStore
from trinity_bus.coordination.state.tables import Groups, Row, Single, Table

TIMES = {"last_seen", "deadline", "started", "cut_at"}  # of the machine's own clock: a restart sets them anew


def known(thing: Any, names: set[str] | None = None) -> Any:
    """What can be compared of a part of a machine: its attributes, but for times, marks and ways to other parts."""
    if isinstance(thing, dict):
        return {key: known(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [known(item) for item in thing]
    if not type(thing).__module__.startswith("trinity_bus.coordination"):
        return thing
    fields = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    found = {name: getattr(thing, name) for name in fields if hasattr(thing, name)} | getattr(thing, "__dict__", {})
    found = {name: value for name, value in found.items() if name not in TIMES | {"_mark", "__weakref__", "__dict__"}}
    return {name: known(value) for name, value in found.items() if names is None or name in names}


def meaning(machine: CoordinatorMachine) -> dict[str, Any]:
    ledger, kept = machine.ledger, machine.state
    attributes = {"_waiting", "_in_training", "filling"}
    unfilled = ledger.admission._unfilled
    of_batches = known(dict(ledger.batches))
    for batch in of_batches.values():
        # Heaps may lie differently, and give the same.
        batch["queued"] = {workflow: sorted(heap) for workflow, heap in batch["queued"].items()}
    return {
        "tasks": known(ledger.tasks),
        "running": known(sorted(ledger.running)),
        "batches": of_batches,
        "order": list(ledger.batches),
        "explorers": known(dict(machine.fleet.explorers)),
        "sync": known(machine.sync.state),
        "counters": known(ledger.counters),
        "line": [batch.batch_id for batch in ledger.queue],
        "waiting": {name: ids(getattr(ledger.admission, name)) for name in attributes},
        "unfilled": [(name, counted.amount) for name, counted in unfilled._counted.items()],
        "shares": (ledger.shares.held, ledger.admission._shares.held),
        "usage": known(ledger.usage),
        "pages": known(ledger.pages, {"_places"}),
        "results": {name: list(ledger._results.of(name)) for name in ledger.batches},
        "finalizers": {name: known(kept.waiters.find(name)) for name in ledger.batches},
        "remembered": [known(part) for part in (ledger.done, ledger.closed, kept.outcomes, kept.replies)],
        "wants_tasks": ledger.wants_tasks(),
        "moves": (set(ledger.handed_out), set(ledger.complete)),
    }


def ids(index: Any) -> Any:
    if isinstance(index, dict):
        return {key: ids(value) for key, value in index.items()}
    return getattr(index, "batch_id", index)


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 4))
@example(57931019, 3)  # two attempts at one part, assigned to explorers in the other order
def test_changes_add_up_to_the_state_and_the_state_restored_is_the_machine(seed: int, looks: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - histories, not secrets
    world = World(rng, draw_settings(rng))
    for look in range(looks):
        happen(world, rng, 120 * (look + 1))
        machine = world.process.machine
        assert machine.entries() == world.log.changelog
        restored = CoordinatorMachine(world.settings, SynchronizerSettings(sync_timeout_s=20))
        restored.restore(machine.entries().items())
        assert restored.entries() == machine.entries()
        assert restored.changes() == []
        before, after = meaning(machine), meaning(restored)
        for name, value in before.items():
            assert after[name] == value, name


class Fruit(Row):
    name: str
    weight: int = 0
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.seen = 0


def test_whatever_is_done_to_a_table_is_noted_and_nothing_else() -> None:
    store = StateStore()
    table: Table[Fruit] = Table("fruit", Fruit, store)
    apple = table["apple"] = Fruit("apple")
    assert store.take() == ["fruit/apple"]
    apple.weight, apple.tags, apple.seen = 0, (), 7
    assert store.take() == [], "nothing that is kept is another than before"
    apple.weight = 3
    assert store.take() == ["fruit/apple"]
    table["apple"] = Fruit("apple", 5)
    apple.weight = 4
    assert store.body("fruit/apple").weight == 5
    assert store.take() == ["fruit/apple"]
    assert table.pop("pear", None) is None
    assert store.take() == []
    del table["apple"]
    assert store.take() == ["fruit/apple"]
    assert store.body("fruit/apple") is None
    for forbidden in (table.clear, table.popitem, lambda: table.update(a=Fruit("a")), lambda: table.setdefault("a")):
        with pytest.raises(TypeError, match="one by one"):
            forbidden()


def test_a_single_row_is_an_entry_once_it_says_something() -> None:
    store = StateStore()
    row = Fruit("the only one")
    Single("fruit", row, store)
    assert list(store.keys()) == []
    row.weight = 2
    assert (list(store.keys()), store.take()) == (["fruit"], ["fruit"])
    store.kinds["fruit"].load({"": {"name": "the only one", "weight": 9, "new": 1}})
    assert (row.weight, store.take()) == (9, [])
    row.weight = 0
    assert store.take() == ["fruit"]


class Bite(Value, array_like=True):
    key: int
    size: float


def test_groups_are_one_entry_each_while_there_is_something_in_them() -> None:
    store = StateStore()
    groups: Groups[int, Bite] = Groups("bites", Bite, store)
    group = groups.of("apple")
    assert (list(store.keys()), store.take()) == ([], [])
    group.add(Bite(1, 0.5))
    group.add(Bite(2, 0.25))
    assert (list(store.keys()), store.take()) == (["bites/apple"], ["bites/apple"])
    del group[1]
    assert store.take() == ["bites/apple"]
    assert [bite.key for bite in groups.take("apple")] == [2]
    assert (store.take(), store.body("bites/apple")) == (["bites/apple"], None)
    groups.take("apple")
    assert store.take() == []
    groups.of("pear").add(Bite(3, 1.0))
    assert groups.of("pear").keys() == {3}


class Core(Value, array_like=True):
    seeds: int = 0


class Apple(Value):
    name: str
    cores: tuple[Core, ...] = ()
    colour: str = "red"
    origin: str = "here"
    SINCE: ClassVar[Mapping[str, int]] = {"origin": OLDEST_LEVEL + 1}


def test_what_a_newer_program_has_written_stays_with_its_value() -> None:
    codec = StateCodec()
    body = {"name": "a", "cores": [[3, "sweet", {"deep": [1]}], [4]], "colour": "green", "price": 5, "origin": "there"}
    apple = codec.build(Apple, body)
    assert (apple.name, [core.seeds for core in apple.cores], apple.colour) == ("a", [3, 4], "green")
    apple.colour = "yellow"
    apple.cores = (*apple.cores, Core(9))
    expected = {**body, "colour": "yellow", "cores": [*body["cores"], [9]]}  # type: ignore[misc]
    for written in (apple, apple.but(name="a")):
        assert unpack("k", codec.pack(written)) == expected


def test_what_is_too_new_for_the_level_is_left_out() -> None:
    codec = StateCodec()
    codec.newest = OLDEST_LEVEL + 1
    apple = Apple("a", (Core(1),), origin="there")
    codec.set_level(OLDEST_LEVEL)
    assert unpack("k", codec.pack(apple)) == {"name": "a", "cores": [[1]], "colour": "red"}
    codec.set_level(codec.newest)
    assert unpack("k", codec.pack(apple))["origin"] == "there"
    with pytest.raises(StateError, match=f"level 99, this program knows {OLDEST_LEVEL} to {codec.newest}"):
        codec.set_level(99)


def test_a_field_that_is_missing_has_its_default() -> None:
    apple = StateCodec().build(Apple, {"name": "a", "cores": [[]]})
    assert apple == Apple("a", (Core(0),), "red")


@pytest.mark.parametrize(
    "body", [{}, {"name": 3}, [1], "a", {"name": "a", "cores": 5}, {"name": "a", "cores": [["x"]]}]
)
def test_what_is_no_value_is_refused(body: Any) -> None:
    with pytest.raises(StateError, match="Apple"):
        StateCodec().build(Apple, body)


@given(st.binary(max_size=40))
def test_any_bytes_are_an_entry_or_refused(value: bytes) -> None:
    try:
        unpack("k", value)
    except StateError:
        return
    assert msgpack.unpackb(value, strict_map_key=False)[0] == FRAMING
