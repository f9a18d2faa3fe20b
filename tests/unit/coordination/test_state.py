"""The state in tables: what is changed is written, what is written is read, and what is not known stays; what an
earlier version wrote is still read, and means what it meant.
"""

from pathlib import Path
from typing import Any, cast

import msgpack
import pytest

from schemas import BatchLifecycleState, BatchRecord
from schemas.codec import RECORDS, decode
from tests.support.effects import written
from tests.support.golden_state import FILES, load, machine_of, with_records
from trinity_bus.coordination import EventArrived, Tick
from trinity_bus.coordination.state.codec import Value
from trinity_bus.coordination.state.store import StateStore
from trinity_bus.coordination.state.tables import Groups, Row, Single, Table


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


KINDS = {
    *("books", "sync", "explorer", "assigned", "batch", "tasks", "ended", "progress", "answer", "results"),
    *("finalizers", "done", "closed", "outcomes", "replies"),
}
"""Of level 1."""


def essence(batch: BatchRecord) -> object:
    return batch.batch_id, batch.batch_type, batch.sequence, batch.manifest, batch.metrics, batch.min_version


def test_the_files_hold_entries_of_every_kind() -> None:
    kinds = {key.partition("/")[0] for path in FILES for key in load(path)["entries"]}
    assert kinds >= KINDS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_coordinator_ends_what_an_earlier_version_has_begun_as_that_would_have(path: Path) -> None:
    """What has not begun may go on in another order."""
    golden = load(path)
    machine = machine_of(golden["settings"], golden["entries"])
    begun = {name for name, batch in machine.ledger.batches.items() if batch.state is not BatchLifecycleState.PENDING}
    finalized: list[BatchRecord] = []
    for now, kind, value in golden["told"]:
        given = Tick() if kind == "Tick" else EventArrived(cast("Any", decode(value, *RECORDS)))
        moved = written(machine.handle(given, now), BatchRecord)
        finalized += [record for record in moved if record.state is BatchLifecycleState.FINALIZED]
    expected = [decode(value, BatchRecord) for value in golden["finalized"]]
    assert len(expected) > 3
    found, promised = ([essence(batch) for batch in all_ if batch.batch_id in begun] for all_ in (finalized, expected))
    assert len(promised) >= 2
    assert found == promised


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reading_changes_nothing(path: Path) -> None:
    golden = load(path)
    machine = machine_of(golden["settings"], golden["entries"])
    assert machine.changes() == []
    entries, before = machine.entries(), golden["entries"]
    assert entries.keys() == before.keys()
    for key, value in entries.items():
        body, was = with_records(msgpack.unpackb(value)[1]), with_records(msgpack.unpackb(before[key])[1])
        # Fields that a row has got since have their defaults.
        assert ({**body, **was} if isinstance(was, dict) else was) == body, key
