"""Up to four runs on one axis: each run's index is asked, also of runs that have long ended.

Indexes lie side by side in one folder, one for each namespace; a run is one of these. Only names that the folder has
are opened.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from trinity_bus.console.index import Index, SettingsRow, StoreError
from trinity_bus.console.index.files import database
from trinity_bus.console.web import charts
from trinity_bus.console.web.overview import REWARD
from trinity_bus.console.web.render import Frame
from trinity_bus.console.web.settings_table import ComparedSetting, compared_settings
from workers.console.desk import BadLinkError, PageDesk

MAX_RUNS: Final = 4
_LISTED: Final = 200
_METRICS: Final = (REWARD, "loss", "entropy", "kl", "grad_norm", "staleness_mean", "seconds")
_MAX_NAME: Final = 200


class Compare:
    """Handlers of the page that compares runs.

    Args:
        desk: Makes pages.
    """

    def __init__(self, desk: PageDesk) -> None:
        self._desk = desk
        self._folder = desk.feed.index.folder.parent

    def install(self, app: web.Application) -> None:
        """Answer in an application."""
        app.router.add_get("/compare", self._compare)

    async def _compare(self, request: web.Request) -> web.Response:
        chosen = request.query.getall("run", [])

        async def values(frame: Frame) -> Mapping[str, Any]:
            metric = frame.query.get("metric", "").strip()
            if len(metric) > _MAX_NAME:
                raise BadLinkError(f"a metric's name has at most {_MAX_NAME} characters")
            names = await asyncio.to_thread(_runs, self._folder)
            wanted = list(dict.fromkeys(chosen)) or [name for name in names if name == frame.namespace]
            if unknown := [name for name in wanted if name not in names]:
                raise BadLinkError(f"there is no index of {unknown[0][:100]!r}")
            if len(wanted) > MAX_RUNS:
                raise BadLinkError(f"{len(wanted)} runs: at most {MAX_RUNS} can be told apart on one axis")
            shown = (metric, *_METRICS) if metric and metric not in _METRICS else _METRICS
            drawn, known = await asyncio.to_thread(_charts, self._folder, wanted, shown, frame.until)
            settings, untold = await asyncio.to_thread(_settings, self._folder, wanted, frame.until)
            return {
                "runs": names,
                "chosen": wanted,
                "charts": drawn,
                "metric": metric,
                "metrics": known,
                "settings": settings,
                "untold": untold,
                "most": MAX_RUNS,
            }

        return await self._desk.show(request, "compare.html", values)


def _runs(folder: Path) -> list[str]:
    """Return the namespaces that have an index, the newest first."""
    found = [path for path in folder.iterdir() if database(path).is_file()] if folder.is_dir() else []
    newest = sorted(found, key=lambda path: database(path).stat().st_mtime, reverse=True)
    return [path.name for path in newest[:_LISTED]]


def _settings(folder: Path, runs: Sequence[str], until: float | None) -> tuple[list[ComparedSetting], list[str]]:
    """Return the settings of runs side by side, and a line for each run whose services have told none."""
    told: list[list[SettingsRow]] = []
    lines = []
    for run in runs:
        with Index(folder / run) as index:
            try:
                told.append(index.settings(until=until))
            except StoreError:
                lines.append(f"{run}: its index is of an earlier version; a console of its log makes it anew")
                told.append([])
                continue
        if not told[-1]:
            lines.append(f"{run}: no service has told its settings, or retention had deleted them")
    return compared_settings(told), lines


def _charts(
    folder: Path, runs: Sequence[str], metrics: Sequence[str], until: float | None
) -> tuple[list[tuple[str, Any]], list[str]]:
    """Return a chart for each metric that some run has, and the names of all metrics."""
    lines: dict[str, list[charts.Line]] = {name: [] for name in metrics}
    known: set[str] = set()
    for run in runs:
        with Index(folder / run) as index:
            known.update(index.metric_names())
            for one in index.metrics(metrics, by="step", points=charts.MAX_POINTS, until=until):
                lines[one.name].append(charts.Line(run, [(point.x, point.value) for point in one.points]))
    drawn = [(name, charts.lines(name, each)) for name, each in lines.items() if any(one.points for one in each)]
    return drawn, sorted(known)
