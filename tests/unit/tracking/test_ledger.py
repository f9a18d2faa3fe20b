import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from schemas import BatchLifecycleState, BatchRecord, StepEnded, StepTrained
from schemas.topics import BATCHES, STEPS, TRAINER_EVENTS
from tests.support.fakes.mesh_records import batch, step_trained
from tests.support.fakes.received import received as at_place
from tests.support.narrowing import some
from tests.support.tracking import board_events, wandb_rows
from trinity_bus.tracking.metrics_ledger import MetricsLedger, MetricsLedgerError, MetricsLine, line_of
from trinity_bus.tracking.sinks import Sink, TensorBoard, Trackio, WeightsAndBiases

received = partial(at_place, timestamp_ms=1500)
LOG = {"trainer-events": "cluster/one", "batches": "cluster/two"}


def step(number: int, **more: Any) -> StepTrained:
    return step_trained(number, **{"metrics": {"loss": 0.5, "bad": float("nan")}, **more})


def line(offset: int) -> MetricsLine:
    return MetricsLine("trainer-events", 0, offset, 1.5, offset, {"loss": offset / 10})


def test_what_has_metrics_of_a_step_is_a_line() -> None:
    assert line_of(received(step(3), TRAINER_EVENTS, 7)) == MetricsLine("trainer-events", 0, 7, 1.5, 3, {"loss": 0.5})
    assert line_of(received(step(3, again=True), TRAINER_EVENTS)) is None
    assert line_of(received(step(0, metrics={}), TRAINER_EVENTS)) is None


@pytest.mark.parametrize(
    ("trainer", "follows", "name"),
    [("trainer-0", None, "loss"), ("trainer-0/sft", None, "sft/loss"), ("replay-3", "trainer-0/grpo", "replay-3/loss")],
)
def test_steps_that_make_no_version_are_told_by_whose_they_are(trainer: str, follows: str | None, name: str) -> None:
    who = {"trainer": trainer, "follows": follows, "incarnation": "i", "run": "r", "model": "policy"}
    ended = StepEnded(**who, step=3, batch_id="b", metrics={"loss": 0.5})
    assert line_of(received(ended, STEPS, 7)) == MetricsLine("steps", 0, 7, 1.5, 3, {name: 0.5})


@pytest.mark.parametrize(("kind", "wanted"), [("train", 4), ("eval", 9)])
def test_a_batch_tells_when_it_is_finalized(kind: Any, wanted: int) -> None:
    def told(state: BatchLifecycleState) -> BatchRecord:
        metrics = {"rollout/reward/mean": 1.0}
        return batch("b", state, batch_type=kind, sequence=4, min_version=9, metrics=metrics)

    found = some(line_of(received(told(BatchLifecycleState.FINALIZED), BATCHES)))
    assert (found.step, found.metrics) == (wanted, {"rollout/reward/mean": 1.0})
    assert line_of(received(told(BatchLifecycleState.RUNNING), BATCHES)) is None


def test_it_goes_on_behind_its_last_whole_line_wherever_it_was_cut(tmp_path: Path) -> None:
    with MetricsLedger(tmp_path, LOG) as ledger:
        ledger.append([line(0), line(1), line(2)])
    whole = ledger.path.read_bytes()
    for cut in range(len(whole) + 1):
        ledger.path.write_bytes(whole[:cut])
        with MetricsLedger(tmp_path, LOG) as again:
            first = again.positions.get(("trainer-events", 0), 0)
            assert first == again.lines
            again.append([line(offset) for offset in range(first, 3)])
            assert [one.offset for one in again.since(0)] == [0, 1, 2]
            assert [one.offset for one in again.since(2)] == [2]
        assert ledger.path.read_bytes() == whole


def test_it_is_of_one_log_and_of_one_tracker(tmp_path: Path) -> None:
    with MetricsLedger(tmp_path, LOG) as ledger, pytest.raises(MetricsLedgerError, match="another tracker"):
        MetricsLedger(tmp_path, LOG)
    with pytest.raises(MetricsLedgerError, match="another log"):
        MetricsLedger(tmp_path, {**LOG, "batches": "cluster/three"})
    with ledger.path.open("a") as file:
        file.write(json.dumps({"some": "thing"}) + "\n")
    with pytest.raises(MetricsLedgerError, match="line 2"):
        MetricsLedger(tmp_path, LOG)


LINES = [MetricsLine("trainer-events", 0, step, 1000.0 + step, step, {"loss": 1 / (step + 1)}) for step in range(20)]


def written(sink: Sink, lines: list[MetricsLine]) -> None:
    """As the tracker does: what the sink lacks, then no more."""
    sink.write(lines[sink.lines :])
    sink.close()


def test_tensorboard_has_each_line_once_wherever_its_file_was_cut(tmp_path: Path) -> None:
    written(TensorBoard(tmp_path / "whole"), LINES)
    (file,) = (tmp_path / "whole").iterdir()
    whole = file.read_bytes()
    for cut in range(0, len(whole), 41):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / file.name).write_bytes(whole[:cut])
        written(TensorBoard(folder), LINES)
        assert board_events(folder) == Counter((one.step, one.at) for one in LINES), cut
        # Nothing is left to be written.
        again = TensorBoard(folder)
        again.close()
        assert again.lines == len(LINES)


def test_wandb_offline_has_each_line_once_when_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not part of the environment of tests")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for number in (7, len(LINES)):
        written(WeightsAndBiases(tmp_path / "wandb", "project", "run"), LINES[:number])
    (file,) = (tmp_path / "wandb").rglob("*.wandb")
    steps = [int(row["step"]) for row in wandb_rows(file)]
    assert steps == [one.step for one in LINES]


def test_trackio_has_each_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    store = pytest.importorskip("trackio.sqlite_storage", reason="trackio is not part of the environment of tests")
    written(Trackio(tmp_path, "project", "run"), LINES[:7])
    again = Trackio(tmp_path, "project", "run")
    assert again.lines == 7
    # As one whose count is of before its last write.
    again.lines = 5
    written(again, LINES)
    rows = store.SQLiteStorage.get_logs("project", run="run")
    assert [(row["step"], row["loss"]) for row in rows] == [(one.step, one.metrics["loss"]) for one in LINES]
    assert rows[3]["timestamp"] == "1970-01-01T00:16:43+00:00"
    # That of another ledger is another run.
    other = Trackio(tmp_path / "other", "project", "run")
    assert other.lines == 0
    written(other, LINES[:3])
    assert Trackio(tmp_path / "other", "project", "run").lines == 3
    assert Trackio(tmp_path, "project", "run").lines == len(LINES)
