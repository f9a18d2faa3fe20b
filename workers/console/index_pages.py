"""Pages that the index answers: the overview, lists, and one batch, step or task, now and at an earlier moment."""

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from trinity_bus.console.index.index import Index
from trinity_bus.console.index.questions import PageAsk, SampleFilter, StoreError
from trinity_bus.console.web import overview as first_page
from trinity_bus.console.web.charts import MAX_POINTS
from trinity_bus.console.web.render import Frame
from trinity_bus.console.web.rollouts import task_tree
from workers.console.page_context import BadLinkError, PageContext, asked_of, count, number, page_ask, there, whole

_BINS: Final = 24
_STEPS: Final = 12
_CHOICES: Final = 5
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
        view = first_page.overview(
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
        "choices": index.choices(model, rows=_CHOICES, until=until),
        "served": {row.explorer: row.version for row in alive},
        "pinned": next((row.version for row in page.rows if row.pinned), None),
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
        syncs=index.syncs(min(row.version for row in versions), until=until) if versions else [],
        fleet=index.fleet(until=until),
        metrics={} if newest is None else newest.metrics,
        trainers=index.trainers(until=until),
    )
