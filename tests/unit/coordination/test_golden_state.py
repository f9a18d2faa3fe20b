"""The state that an earlier version wrote is still read, and means what it meant."""

from pathlib import Path
from typing import Any

import msgpack
import pytest

from schemas import BatchLifecycleState, BatchRecord, StepTrained
from schemas.codec import RECORDS, decode
from tests.support.golden_state import GOLDEN, machine_of
from trinity_bus.coordination import BatchMoved, EventArrived, Tick

FILES = sorted(GOLDEN.glob("*.msgpack"))
KINDS = {
    *("books", "sync", "explorer", "assigned", "batch", "tasks", "ended", "progress", "answer", "results"),
    *("finalizers", "done", "closed", "outcomes", "replies"),
}
"""Of level 2."""


def load(path: Path) -> dict[str, Any]:
    """A file, unpacked."""
    golden: dict[str, Any] = msgpack.unpackb(path.read_bytes())
    return golden


def essence(batch: BatchRecord) -> object:
    """What was promised of a batch."""
    return batch.batch_id, batch.batch_type, batch.sequence, batch.manifest, batch.metrics, batch.min_version


def with_records(body: dict[str, Any]) -> dict[str, Any]:
    """The same with the records in it decoded: their own codec writes fields that they have got since."""
    return {key: decode(value, StepTrained) if isinstance(value, bytes) else value for key, value in body.items()}


def test_the_files_hold_entries_of_every_kind() -> None:
    kinds = {key.partition("/")[0] for path in FILES for key in load(path)["entries"]}
    assert kinds >= KINDS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_coordinator_goes_on_from_an_earlier_version_as_that_would_have(path: Path) -> None:
    golden = load(path)
    machine = machine_of(golden["settings"], golden["entries"])
    finalized: list[BatchRecord] = []
    for now, kind, value in golden["told"]:
        given = Tick() if kind == "Tick" else EventArrived(decode(value, *RECORDS))
        moved = [command.record for command in machine.handle(given, now) if isinstance(command, BatchMoved)]
        finalized += [record for record in moved if record.state is BatchLifecycleState.FINALIZED]
    expected = [decode(value, BatchRecord) for value in golden["finalized"]]
    assert len(expected) > 5
    assert [essence(batch) for batch in finalized] == [essence(batch) for batch in expected]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reading_changes_nothing(path: Path) -> None:
    golden = load(path)
    machine = machine_of(golden["settings"], golden["entries"])
    assert machine.changes() == []
    entries, before = machine.entries(), golden["entries"]
    assert entries.keys() == before.keys()
    for key, value in entries.items():
        body, was = msgpack.unpackb(value)[1], msgpack.unpackb(before[key])[1]
        if key.startswith(("explorer/", "batch/")):
            # They have their own name in them now, which their reader of before passes over.
            name = key.partition("/")[2]
            assert body == {"name" if key.startswith("explorer/") else "batch_id": name, **was}, key
        elif key == "sync":
            assert with_records(body) == with_records(was)
        else:
            assert body == was, key
