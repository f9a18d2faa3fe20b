"""The state that an earlier version wrote is still read, and means what it meant."""

from pathlib import Path
from typing import Any, cast

import msgpack
import pytest

from schemas import BatchLifecycleState, BatchRecord
from schemas.codec import RECORDS, decode
from tests.support.effects import written
from tests.support.golden_state import FILES, load, machine_of, with_records
from trinity_bus.coordination import EventArrived, Tick

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
