from collections import Counter
from pathlib import Path

import pytest

from tests.support.tracking import board_events, wandb_rows
from trinity_bus.tracking.metrics_ledger import MetricsLine
from trinity_bus.tracking.sinks import Sink, TensorBoard, WeightsAndBiases

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
