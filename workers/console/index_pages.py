"""Pages that the index answers: the overview, lists, one batch, step or task, and up to four runs on one axis.

Runs may have ended long ago. Indexes lie side by side in one folder, one for each namespace; a run is one of these, or
one of the other trainers of a namespace that is chosen: ``namespace/replay-12``. Only names that the folder has are
opened.

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

from trinity_bus.console.index.files import database
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.terms import PageAsk, Point, SampleFilter, SettingsRow, StoreError
from trinity_bus.console.web import overview as first_page
from trinity_bus.console.web import render
from trinity_bus.console.web.overview import REWARD
from trinity_bus.console.web.render import MAX_POINTS, Frame
from trinity_bus.console.web.rollouts import task_tree
from workers.console.page_context import BadLinkError, PageContext, asked_of, count, number, page_ask, there, whole

_BINS: Final = 24
_STEPS: Final = 12
_VERSIONS: Final = 40  # Whose transfers are drawn
_ASKED: Final = ("text", "task", "batch", "step", "trainer", "low", "high", "version_low", "version_high")


class IndexPages:
    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._feed = context.feed

    def install(self, app: web.Application) -> None:
        add, of_index = self._context.add, self._context.of_index
        add(app, "/", "overview.html", self._overview)
        add(app, "/versions", "versions.html", self._versions)
        add(app, "/samples", "samples.html", self._samples)
        add(app, "/batches", "batches.html", of_index(_batches))
        add(app, "/batches/{batch_id:.+}", "batch.html", of_index(_batch))
        add(app, "/steps", "steps.html", of_index(_steps))
        add(app, "/steps/{step}", "step.html", of_index(_step))
        add(app, "/tasks/{task_id:.+}", "task.html", of_index(_task))

    async def _overview(self, frame: Frame) -> Mapping[str, Any]:
        past: first_page.Past | None = None
        no_index = ""
        told: Mapping[str, Any] = {"trainers": [], "trainer": None, "passed_over": ""}
        try:
            past, told = await self._feed.index.ask(
                lambda index: (
                    _past(index, frame),
                    {**_trainers(index, frame), "passed_over": index.passed_over().line},
                )
            )
        except StoreError as error:
            no_index = str(error)
        state = self._feed.state if frame.until is None else None
        view = first_page.Overview(
            past, state, self._feed.lag, is_record=self._feed.is_record, is_away=self._feed.is_away
        )
        return {"view": view, "no_index": no_index, **told}

    async def _versions(self, frame: Frame) -> Mapping[str, Any]:
        model = self._context.settings.mesh.model
        told = await self._feed.index.ask(lambda index: _versions(index, frame, model))
        if frame.until is None:
            served = {one.name: one.model_version for one in self._feed.state.alive() if one.follows == "trainer"}
            told = {**told, "served": served}
        return told

    async def _samples(self, frame: Frame) -> Mapping[str, Any]:
        return {
            "no_text": self._feed.index.no_texts,
            **await self._feed.index.ask(lambda index: _samples(index, frame)),
        }


def _batches(index: Index, frame: Frame) -> Mapping[str, Any]:
    kind = frame.query.get("type") or None
    if kind not in {None, "train", "eval"}:
        raise BadLinkError(f"type = {kind!r}: there are train and eval")
    return {"page": index.batches(page_ask(frame), batch_type=kind, until=frame.until), "kind": kind}  # type: ignore[arg-type]


def _batch(index: Index, frame: Frame) -> Mapping[str, Any]:
    batch_id = frame.names["batch_id"]
    batch = there(index.batch(batch_id, until=frame.until), f"batch {batch_id[:100]!r}", frame.until)
    return {"batch": batch, **_groups(index, frame, SampleFilter(batch_id=batch_id))}


def _steps(index: Index, frame: Frame) -> Mapping[str, Any]:
    page = index.steps(page_ask(frame), trainer=frame.query.get("trainer"), until=frame.until)
    return {"page": page, **_trainers(index, frame)}


def _step(index: Index, frame: Frame) -> Mapping[str, Any]:
    at, trainer = whole(frame.names["step"], "step"), frame.query.get("trainer")
    before, found, behind = (index.step(one, trainer=trainer, until=frame.until) for one in (at - 1, at, at + 1))
    step = there(found, f"step {at}", frame.until)
    teach = True if frame.query.get("teach") == "nothing" else None
    wanted = SampleFilter(step=at, trainer=step.row.trainer, teaches_nothing=teach)
    told = {"step": step, "has_previous": before is not None, "has_next": behind is not None}
    return {**told, **_groups(index, frame, wanted)}


def _groups(index: Index, frame: Frame, wanted: SampleFilter) -> Mapping[str, Any]:
    return {
        "groups": index.groups(wanted, page_ask(frame), until=frame.until),
        "histogram": index.reward_histogram(wanted, bins=_BINS, until=frame.until),
    }


def _samples(index: Index, frame: Frame) -> Mapping[str, Any]:
    asked, ask = asked_of(frame, *_ASKED), page_ask(frame)
    wanted = SampleFilter(
        text=asked["text"] or None,
        task_id=asked["task"] or None,
        batch_id=asked["batch"] or None,
        step=count(frame, "step"),
        trainer=asked["trainer"] or None,
        reward_min=number(frame, "low"),
        reward_max=number(frame, "high"),
        version_min=count(frame, "version_low"),
        version_max=count(frame, "version_high"),
    )
    # Rewards are not counted by text, and a later page has those of the first.
    counted = wanted.text is None and ask.after is None
    return {
        "asked": asked,
        "page": index.samples(wanted, ask, until=frame.until),
        "histogram": index.reward_histogram(wanted, bins=_BINS, until=frame.until) if counted else None,
        "query": {name: value for name, value in frame.query.items() if name not in {"low", "high", "after"}},
    }


def _task(index: Index, frame: Frame) -> Mapping[str, Any]:
    task_id = frame.names["task_id"]
    task = there(index.task(task_id, until=frame.until), f"task {task_id[:100]!r}", frame.until)
    return {"task": task, "tree": task_tree(task)}


def _versions(index: Index, frame: Frame, model: str) -> Mapping[str, Any]:
    until = frame.until
    page = index.versions(page_ask(frame), model=model, until=until)
    alive = first_page.alive_then(index.fleet(until=until), index.extent(until=until))
    return {
        "page": page,
        "served": {row.explorer: row.version for row in alive},
        "pinned": next((row.record.version for row in page.rows if row.pinned), None),
    }


def _trainers(index: Index, frame: Frame) -> Mapping[str, Any]:
    known = index.trainers(until=frame.until)
    return {"trainers": known, "trainer": frame.query.get("trainer") or next((one.trainer for one in known), None)}


def _past(index: Index, frame: Frame) -> first_page.Past:
    until, trainer = frame.until, frame.query.get("trainer")
    tests = [name for name in index.metric_names() if name.startswith("eval/") and "/reward/mean@" in name]
    names = [*first_page.BY_STEP, *tests[: first_page.MAX_TESTS]]
    by_step = index.metrics(names, by="step", points=MAX_POINTS, trainer=trainer, until=until)
    by_time = index.metrics(first_page.BY_TIME, by="time", points=MAX_POINTS, trainer=trainer, until=until)
    versions = index.versions(PageAsk(_VERSIONS), until=until).rows
    steps = index.steps(PageAsk(_STEPS), trainer=trainer, until=until).rows
    done = next((step.step for step in steps if step.trained_at is not None), None)
    newest = None if done is None or until is None else index.step(done, trainer=trainer, until=until)
    return first_page.Past(
        extent=index.extent(until=until),
        by_step=by_step,
        by_time=by_time,
        steps=steps,
        versions=versions,
        syncs=index.syncs(min(row.record.version for row in versions), until=until) if versions else [],
        fleet=index.fleet(until=until),
        metrics={} if newest is None else newest.metrics,
        trainers=index.trainers(until=until),
    )


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
            points = index.metrics(metrics, points=render.MAX_POINTS, trainer=_trainer(run), until=until)
            names = index.metric_names()
        except StoreError:
            return _Told(f"{run}: its index is of an earlier version; a console of its log makes it anew")
    untold = f"{run}: nobody has told its settings (replays and shadows do not), or retention had deleted them"
    others = [f"{_namespace(run)}/{one.trainer}" for one in trainers[1:_LISTED]]
    return _Told("" if settings else untold, points, names, settings, others)


def _charts(runs: Sequence[str], metrics: Sequence[str], told: Sequence[_Told]) -> list[render.Chart]:
    # Each has all runs, also those that have none of it: the colours go by the order of the runs.
    of_runs = list(zip(runs, told, strict=True))
    found = [
        render.chart(
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
