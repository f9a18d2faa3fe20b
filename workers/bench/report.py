"""What a bench leaves behind: ``bench.json``, ``bench.png`` and a table. What is there already is gone on from."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError
from rich.table import Table

from schemas.record import Metrics
from trinity_bus.errors import ConfigError
from trinity_bus.runtime.plain_files import read_plain, write_plain
from workers.demo.report import chart

RESULTS: Final = "bench.json"
PLOT: Final = "bench.png"

type Results = dict[int, Metrics]  # Step of a checkpoint to the metrics of all its evaluations

_RESULTS: Final = TypeAdapter[Results](dict[int, Metrics])
_MAX_BYTES: Final = 64 << 20


def read_results(folder: Path) -> Results:
    """Return what an earlier bench in this folder has found out; nothing where there was none."""
    path = folder / RESULTS
    try:
        return _RESULTS.validate_json(read_plain(path, _MAX_BYTES))
    except FileNotFoundError:
        return {}
    except ValidationError as error:
        raise ConfigError(f"{path} is not what a bench has written: {error.errors()[0]['msg']}") from error


def write_results(folder: Path, results: Mapping[int, Metrics]) -> None:
    """Write what is known, in one rename."""
    text = json.dumps({str(step): results[step] for step in sorted(results)}, indent=2)
    write_plain(folder / RESULTS, text + "\n")


def rewards(results: Results) -> list[str]:
    """Return the names of rewards, ``eval/<set>/reward/mean@n`` and its like."""
    first = next(iter(results.values()), {})
    return [name for name in first if "/reward/" in name]


def table(results: Results) -> Table:
    names = rewards(results)
    found = Table("step", *(name.removeprefix("eval/").replace("/reward/", " ") for name in names))
    for step in sorted(results):
        values = (results[step].get(name) for name in names)
        found.add_row(str(step), *("" if value is None else f"{value:.3f}" for value in values))
    return found


def plot(results: Results, path: Path) -> None:
    """Draw the mean reward of each set over steps, with the best and the worst of the most runs around it."""
    steps = sorted(results)
    with chart(path) as axes:
        for mean in (name for name in rewards(results) if "/mean@" in name):
            (line,) = axes.plot(steps, [results[step][mean] for step in steps], "o-", label=mean.removeprefix("eval/"))
            best, worst = mean.replace("/mean@", "/best@"), mean.replace("/mean@", "/worst@")
            if best in results[steps[0]]:
                low, high = ([results[step][name] for step in steps] for name in (worst, best))
                axes.fill_between(steps, low, high, alpha=0.15, color=line.get_color())
        axes.set(xlabel="step", ylabel="reward")
