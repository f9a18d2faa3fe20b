"""The state that an earlier version wrote is still read, and means what it meant."""

from pathlib import Path
from typing import Any, cast

import msgpack
import pytest

from schemas import BatchLifecycleState, BatchRecord
from schemas.codec import RECORDS, decode
from tests.support.effects import written
from tests.support.golden_state import GOLDEN, machine_of, with_records
from trinity_bus.coordination import EventArrived, Tick

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
    """What was promised of a batch: not the count of its samples, nor the time of failed tasks, which it once kept."""
    metrics = {
        name: value
        for name, value in batch.metrics.items()
        if name != "experience_pipeline/experience_count" and "time/task_execution" not in name
    }
    return batch.batch_id, batch.batch_type, batch.sequence, batch.manifest, metrics, batch.min_version


def test_the_files_hold_entries_of_every_kind() -> None:
    kinds = {key.partition("/")[0] for path in FILES for key in load(path)["entries"]}
    assert kinds >= KINDS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_coordinator_ends_what_an_earlier_version_has_begun_as_that_would_have(path: Path) -> None:
    """What has not begun goes on in another order: producers took no turns then."""
    golden = load(path)
    machine = machine_of(golden["settings"], golden["entries"])
    begun = {name for name, batch in machine.ledger.batches.items() if batch.state is not BatchLifecycleState.PENDING}
    finalized: list[BatchRecord] = []
    for now, kind, value in golden["told"]:
        given = Tick() if kind == "Tick" else EventArrived(cast("Any", decode(value, *RECORDS)))
        moved = written(machine.handle(given, now), BatchRecord)
        finalized += [record for record in moved if record.state is BatchLifecycleState.FINALIZED]
    expected = [decode(value, BatchRecord) for value in golden["finalized"]]
    assert len(expected) > 5
    found, promised = ([essence(batch) for batch in all_ if batch.batch_id in begun] for all_ in (finalized, expected))
    assert len(promised) >= 3
    assert found == promised


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reading_changes_nothing(path: Path) -> None:
    golden = load(path)
    machine = machine_of(golden["settings"], golden["entries"])
    assert machine.changes() == []
    entries, before = machine.entries(), golden["entries"]
    assert entries.keys() == before.keys()
    for key, value in entries.items():
        body, was = msgpack.unpackb(value)[1], msgpack.unpackb(before[key])[1]
        name = key.partition("/")[2]
        # What is in them now and was not, their reader of before passes over.
        if key.startswith("explorer/"):
            assert body == {"name": name, "pool": "", "fixed": False, "lane": None, **was}, key
        elif key.startswith("batch/"):
            assert body == {"batch_id": name, "owner": "*" if was["unnamed"] else "", **was}, key
        elif key == "books":
            assert body == {"turns": {}, "training_turns": {}, "drained": 0, **was}
        elif key.startswith("progress/"):
            assert body == {"lost_s": 0.0, **was}, key
        elif key == "sync":
            choice = was["choice"]
            if choice is not None and "rollback" in choice:
                choice = {"asked_by": None, **choice}
            expected = {"asked_by": None, "is_untold": False, **was, "choice": choice}
            assert with_records(body) == with_records(expected)
        else:
            assert body == was, key
