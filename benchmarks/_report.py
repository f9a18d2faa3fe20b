"""What every benchmark ends with: a table for people and a JSON file for machines."""

import json
import os
import shutil
import subprocess
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

from rich.table import Table

from benchmarks._options import TOY
from workers.cli.console import console

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    metric: str
    value: float
    unit: str
    goal: float | None = None
    better: Literal["higher", "lower"] = "higher"

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value >= self.goal if self.better == "higher" else self.value <= self.goal

    def of(self, what: str) -> Self:
        return replace(self, metric=f"{what}: {self.metric}")


def less(metric: str, value: float, unit: str, goal: float | None = None) -> Row:
    """Return a figure of which less is better."""
    return Row(metric, value, unit, goal, "lower")


def report(
    name: str,
    title: str,
    rows: Sequence[Row],
    options: Namespace,
    *,
    subject: str = TOY,
    notes: Sequence[str] = (),
    more: Mapping[str, object] | None = None,
) -> None:
    """Print ``rows`` as a table and write them to ``benchmarks/results/NAME.json``, those of a short run only if told.

    A benchmark has the name of its module. What was measured on another subject than the toy has a file of its own,
    ``NAME_SUBJECT.json``. The file tells ``more`` beside the rows, and the table has notes below it.
    """
    table = Table(title=title, title_justify="left")
    for header in ("metric", "value", "unit", "goal", ""):
        table.add_column(header, justify="right" if header in ("value", "goal") else "left")
    for row in rows:
        goal = "" if row.goal is None else f"{'>=' if row.better == 'higher' else '<='} {row.goal:g}"
        verdict = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[row.met]
        table.add_row(
            row.metric, f"{row.value:,.4g}" if row.value < 1000 else f"{row.value:,.0f}", row.unit, goal, verdict
        )
    out = console()
    out.print(table)
    for note in notes:
        out.print(note, style="dim")
    if options.short and options.results is None:
        return
    folder = options.results or RESULTS
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}{'' if subject == TOY else f'_{subject.lower()}'}.json"
    told = {**_measured(), **(more or {}), "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    out.print(f"written to {path}")


def _measured() -> dict[str, object]:
    """Return when, of which commit and on how many cores; the commit is None where this is no checkout."""
    commit = None
    if git := shutil.which("git"):
        answer = subprocess.run(  # noqa: S603  # of fixed words
            [git, "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
        commit = answer.stdout.strip() or None
    return {"date": datetime.now(UTC).date().isoformat(), "commit": commit, "cores": os.cpu_count()}
