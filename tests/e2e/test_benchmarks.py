"""Each benchmark in its short form: it runs to its end, and its table has the rows that are kept of a full run.

Figures mean nothing here. Rows are compared without their numbers, and without what stands before the last colon: a
short run has another model, fewer explorers, or one method of several.
"""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks._options import REAL, SHORT_LIMIT_S
from benchmarks._report import RESULTS
from trinity_bus.config import KafkaSettings

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"demo", "gpu", "peers"}
"""A whole demo is run by ``test_demo_mesh``, which makes that benchmark of it; ``gpu`` has no figures to be compared
with, and a test below; ``peers`` would install what it compares with, and run two whole demos."""
BENCHMARKS = sorted({path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py")} - ELSEWHERE)
SECONDS = {"codec"}
"""Run for each change; the others take minutes."""
OWN_BROKER = {"scheduling"}
"""Kills it."""


def shape(rows: list[dict[str, object]]) -> set[str]:
    return {re.sub(r"[\d.,]+", "#", str(row["metric"]).rpartition(": ")[2]) for row in rows}


def run(name: str, folder: Path, kafka: KafkaSettings | None, *options: object) -> list[dict[str, object]]:
    """The rows of a benchmark that was run as ``make bench`` does."""
    env = dict(os.environ)
    if kafka is not None:
        env["TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS"] = str(kafka.bootstrap_servers)
    command = [sys.executable, "-m", f"benchmarks.{name}", "--results", str(folder), *map(str, options)]
    ended = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SHORT_LIMIT_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows: list[dict[str, object]] = json.loads((folder / f"{name}.json").read_text())["rows"]
    return rows


@pytest.mark.parametrize(
    "name", [name if name in SECONDS else pytest.param(name, marks=pytest.mark.nightly) for name in BENCHMARKS]
)
def test_a_short_run_ends_well_and_has_the_rows_of_a_full_one(name: str, kafka: KafkaSettings, tmp_path: Path) -> None:
    rows = run(name, tmp_path, None if name in OWN_BROKER else kafka, "--short")
    files = [RESULTS / f"{name}.json", RESULTS / f"{name}_{REAL.lower()}.json"]
    kept = [row for path in files if path.is_file() for row in json.loads(path.read_text())["rows"]]
    assert rows
    assert shape(rows) <= shape(kept)
    assert all(math.isfinite(float(str(row["value"]))) and isinstance(row["unit"], str) for row in rows)


@pytest.mark.nightly
def test_the_parts_for_gpus_compute_on_a_cpu(tmp_path: Path) -> None:
    rows = run("gpu", tmp_path, None, "--short", "--parts", "training", "memory", "links")
    figures = {str(row["metric"]): float(str(row["value"])) for row in rows}
    assert all(math.isfinite(value) for value in figures.values())
    assert figures["training: MFU, of a product of two matrices"] > 0
    assert figures["training: gradients' norm, over the plain float32 engine's"] == pytest.approx(1.0, rel=1e-3)
    assert {figures[f"{name}: transfer"] > 0 for name in ("memory", "links")} == {True}


def test_nothing_of_the_tests_is_in_a_benchmark() -> None:
    files = list((ROOT / "benchmarks").rglob("*.py"))
    assert [
        str(path) for path in files if re.search(r"^\s*(from|import) tests\b", path.read_text(), re.MULTILINE)
    ] == []
