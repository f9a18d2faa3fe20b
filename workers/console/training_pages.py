"""Batches and steps: from what was trained to what it was trained on."""

import math
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web
from markupsafe import Markup

from trinity_bus.console.index.answers import Histogram
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.questions import PageAsk, SampleFilter
from trinity_bus.console.web import charts
from trinity_bus.console.web.render import Frame
from workers.console.access_control import NotThereError
from workers.console.page_context import BadLinkError, PageContext, whole

_ROWS: Final = 100
BINS: Final = 24


class TrainingPages:
    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._ask = context.feed.index.ask

    def install(self, app: web.Application) -> None:
        self._context.add(app, "/batches", "batches.html", self._batches)
        self._context.add(app, "/batches/{batch_id:.+}", "batch.html", self._batch)
        self._context.add(app, "/steps", "steps.html", self._steps)
        self._context.add(app, "/steps/{step}", "step.html", self._step)

    async def _batches(self, frame: Frame) -> Mapping[str, Any]:
        kind = frame.query.get("type") or None
        if kind not in {None, "train", "eval"}:
            raise BadLinkError(f"type = {kind!r}: there are train and eval")
        ask = PageAsk(_ROWS, frame.query.get("after"))
        page = await self._ask(lambda index: index.batches(ask, batch_type=kind, until=frame.until))  # type: ignore[arg-type]
        return {"page": page, "kind": kind}

    async def _batch(self, frame: Frame) -> Mapping[str, Any]:
        batch_id = frame.names["batch_id"]
        wanted = SampleFilter(batch_id=batch_id)
        batch = await self._ask(lambda index: index.batch(batch_id, until=frame.until))
        if batch is None:
            raise NotThereError(f"batch {batch_id[:100]!r} is not on the log{_then(frame)}")
        return {"batch": batch, **await self._groups(frame, wanted, {"batch": batch_id})}

    async def _steps(self, frame: Frame) -> Mapping[str, Any]:
        ask, asked = PageAsk(_ROWS, frame.query.get("after")), frame.query.get("trainer")

        def answers(index: Index) -> Mapping[str, Any]:
            page = index.steps(ask, trainer=asked, until=frame.until)
            return {"page": page, **trainers_of(index, frame)}

        return await self._ask(answers)

    async def _step(self, frame: Frame) -> Mapping[str, Any]:
        number = whole(frame.names["step"], "step")
        trainer = frame.query.get("trainer")
        near = (number - 1, number, number + 1)
        before, step, behind = await self._ask(
            lambda index: [index.step(one, trainer=trainer, until=frame.until) for one in near]
        )
        if step is None:
            raise NotThereError(f"step {number} is not on the log{_then(frame)}")
        teach = True if frame.query.get("teach") == "nothing" else None
        wanted = SampleFilter(step=number, trainer=step.row.trainer, teaches_nothing=teach)
        told = {"step": step, "has_previous": before is not None, "has_next": behind is not None}
        return {**told, **await self._groups(frame, wanted, {"step": number, "trainer": step.row.trainer})}

    async def _groups(self, frame: Frame, wanted: SampleFilter, query: Mapping[str, object]) -> Mapping[str, Any]:
        ask = PageAsk(_ROWS, frame.query.get("after"))

        def answers(index: Index) -> Mapping[str, Any]:
            return {
                "groups": index.groups(wanted, ask, until=frame.until),
                "histogram_part": histogram_part(
                    self._context, frame, index.reward_histogram(wanted, bins=BINS, until=frame.until), query
                ),
            }

        return await self._ask(answers)


def histogram_part(context: PageContext, frame: Frame, found: Histogram, query: Mapping[str, object]) -> Markup:
    bars = []
    for number, one in enumerate(found.bins):
        # A bar counts from its low end to below the next one's.
        high = one.high if number == len(found.bins) - 1 else math.nextafter(one.high, -math.inf)
        href = frame.url("/samples", **query, low=one.low, high=high)
        bars.append(charts.Bar(one.low, one.high, one.count, href))
    return Markup(context.pages.piece("histogram.html", bars=found, chart=charts.histogram("rewards", bars)))  # noqa: S704 - rendered by a template that escapes


def trainers_of(index: Index, frame: Frame) -> Mapping[str, Any]:
    known = index.trainers(until=frame.until)
    return {"trainers": known, "trainer": frame.query.get("trainer") or next((one.trainer for one in known), None)}


def _then(frame: Frame) -> str:
    return "" if frame.until is None else " at this moment"
