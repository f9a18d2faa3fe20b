"""A folder in which no ledger can be, a disk that is full, and a ledger of somebody else: told in a line."""

import errno
import json
import os
from pathlib import Path

import pytest

from trinity_bus.tracking.metrics_ledger import MetricsLedger, MetricsLedgerError, MetricsLine

LOG = {"batches": "cluster/topic"}
NAMES = {"a\nb": 1.0, "../../x": 2.0, "\u202e\0": 3.0, "x" * (1 << 20): 4.0}


def test_whatever_a_metric_is_called_it_is_one_line(tmp_path: Path) -> None:
    with MetricsLedger(tmp_path, LOG) as ledger:
        ledger.append([MetricsLine("batches", 0, 7, 1.0, 3, NAMES)])
    with MetricsLedger(tmp_path, LOG) as ledger:
        assert [line.metrics for line in ledger.since(0)] == [NAMES]
        assert ledger.positions == {("batches", 0): 8}
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("where", ["under a file", "a folder", "no folder can be made"])
def test_a_ledger_that_cannot_be_opened_is_told_of(where: str, tmp_path: Path) -> None:
    folder = Path("/proc/ledger") if where.startswith("no") else tmp_path / "folder"
    if where == "under a file":
        folder.write_text("a file")
    elif where == "a folder":
        (folder / "metrics.jsonl").mkdir(parents=True)
    with pytest.raises(MetricsLedgerError, match="cannot be"):
        MetricsLedger(folder, LOG)


def test_a_disk_that_is_full_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with MetricsLedger(tmp_path, LOG) as ledger:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(MetricsLedgerError, match="No space left"):
            ledger.append([MetricsLine("batches", 0, 7, 1.0, 3, {"a": 1.0})])


def test_a_ledger_of_somebody_else_is_told_of(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    (tmp_path / "metrics.jsonl").write_text(f'{json.dumps({"log": LOG})}\n{{"x": {deep}}}\n')
    with pytest.raises(MetricsLedgerError, match="line 2, was not written"):
        MetricsLedger(tmp_path, LOG)
