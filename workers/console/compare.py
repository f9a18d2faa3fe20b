"""Up to four runs on one axis: each run's index is asked, also of runs that have long ended.

Indexes lie side by side in one folder, one for each namespace; a run is one of these, or one of the other trainers of a
namespace that is chosen: ``namespace/replay-12``. Only names that the folder has are opened.

A run has a value of a setting for each service that told it, one for each explorer; those that are the same are one.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from aiohttp import web

from trinity_bus.console.index.answers import Point, SettingsRow
from trinity_bus.console.index.files import database
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.questions import StoreError
from trinity_bus.console.web import charts
from trinity_bus.console.web.overview import REWARD
from trinity_bus.console.web.render import Frame
from workers.console.page_context import BadLinkError, PageContext

MAX_RUNS: Final = 4
_LISTED: Final = 200
_METRICS: Final = (REWARD, "loss", "entropy", "kl", "grad_norm", "staleness_mean", "seconds")
_MAX_NAME: Final = 200


class _Told(NamedTuple):
    trouble: str  # A line for people; empty where there is none
    points: Mapping[str, Sequence[Point]] = MappingProxyType({})
    names: Sequence[str] = ()  # Of all metrics
    settings: Sequence[SettingsRow] = ()
    others: Sequence[str] = ()  # Of its namespace, runs of other trainers than the one that the namespace stands for


class Compare:
    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._folder = context.feed.index.folder.parent

    def install(self, app: web.Application) -> None:
        self._context.add(app, "/compare", "compare.html", self._compare)

    async def _compare(self, frame: Frame) -> Mapping[str, Any]:
        chosen = [value for name, value in frame.pairs if name == "run"]
        metric = frame.query.get("metric", "").strip()
        if len(metric) > _MAX_NAME:
            raise BadLinkError(f"a metric's name has at most {_MAX_NAME} characters")
        names = await asyncio.to_thread(_runs, self._folder)
        wanted = list(dict.fromkeys(chosen)) or [name for name in names if name == frame.namespace]
        if unknown := [name for name in wanted if _namespace(name) not in names]:
            raise BadLinkError(f"there is no index of {unknown[0][:100]!r}")
        if len(wanted) > MAX_RUNS:
            raise BadLinkError(f"{len(wanted)} runs: at most {MAX_RUNS} can be told apart on one axis")
        shown = (metric, *_METRICS) if metric and metric not in _METRICS else _METRICS
        told = await asyncio.to_thread(lambda: [_told(self._folder, run, shown, frame.until) for run in wanted])
        others = {_namespace(run): one.others for run, one in zip(wanted, told, strict=True)}
        return {
            "runs": [run for name in names for run in (name, *others.get(name, ()))],
            "chosen": wanted,
            "charts": _charts(wanted, shown, told),
            "metric": metric,
            "metrics": sorted({name for one in told for name in one.names}),
            "settings": compared_settings([one.settings for one in told]),
            "untold": [one.trouble for one in told if one.trouble],
            "most": MAX_RUNS,
        }


def _runs(folder: Path) -> list[str]:
    # The namespaces that have an index, the newest first
    found = [path for path in folder.iterdir() if database(path).is_file()] if folder.is_dir() else []
    newest = sorted(found, key=lambda path: database(path).stat().st_mtime, reverse=True)
    return [path.name for path in newest[:_LISTED]]


def _namespace(run: str) -> str:
    return run.partition("/")[0]


def _trainer(run: str) -> str | None:
    # Whose steps they are; None: those of the live trainer that spoke last
    return run.partition("/")[2] or None


def _told(folder: Path, run: str, metrics: Sequence[str], until: float | None) -> _Told:
    with Index(folder / _namespace(run)) as index:
        try:
            trainers = index.trainers(until=until)
            if _trainer(run) not in {None, *(one.trainer for one in (*trainers, *index.trainers()))}:
                raise BadLinkError(f"{_namespace(run)} has no steps of {run.partition('/')[2][:100]!r}")
            follows = any(one.trainer == _trainer(run) and one.follows is not None for one in trainers)
            settings = [] if follows else index.settings(until=until)
            points = index.metrics(metrics, points=charts.MAX_POINTS, trainer=_trainer(run), until=until)
            names = index.metric_names()
        except StoreError:
            return _Told(f"{run}: its index is of an earlier version; a console of its log makes it anew")
    untold = f"{run}: nobody has told its settings (replays and shadows do not), or retention had deleted them"
    others = [f"{_namespace(run)}/{one.trainer}" for one in trainers[1:_LISTED]]
    return _Told("" if settings else untold, points, names, settings, others)


def _charts(runs: Sequence[str], metrics: Sequence[str], told: Sequence[_Told]) -> list[charts.Chart]:
    # Each has all runs, also those that have none of it: the colours go by the order of the runs.
    of_runs = list(zip(runs, told, strict=True))
    found = [
        charts.chart(
            name, [(run, [(point.x, point.value) for point in one.points.get(name, ())]) for run, one in of_runs]
        )
        for name in metrics
    ]
    return [one for one in found if any(line.points for line in one.lines)]


_VALUES: Final = 3  # Of one run that are shown, where its services differ


@dataclass(frozen=True, slots=True)
class ComparedSetting:
    path: str
    # Of each run, as TOML writes it; empty where it is not set, None where no service of the run has told it
    values: tuple[str | None, ...]

    @property
    def differs(self) -> bool:
        return len({value for value in self.values if value is not None}) > 1


def compared_settings(runs: Sequence[Sequence[SettingsRow]]) -> list[ComparedSetting]:
    """Return every setting that some run has told: first those in which they differ, then by path."""
    told = [_of_run(run) for run in runs]
    paths = sorted({path for run in told for path in run})
    rows = [ComparedSetting(path, tuple(run.get(path) for run in told)) for path in paths]
    return sorted(rows, key=lambda row: not row.differs)


def _of_run(services: Sequence[SettingsRow]) -> dict[str, str]:
    values: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for service in services:
        for path, value in service.settings.items():
            values[path][value] = None
    return {path: _joined(list(each)) for path, each in values.items()}


def _joined(values: list[str]) -> str:
    if len(values) == 1:
        return values[0]
    rest = len(values) - _VALUES
    shown = [value or "unset" for value in values[:_VALUES]]
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")
