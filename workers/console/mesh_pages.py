"""The overview, and versions."""

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from trinity_bus.console.index.index import Index
from trinity_bus.console.index.questions import PageAsk
from trinity_bus.console.web import overview as first_page
from trinity_bus.console.web.charts import MAX_POINTS
from trinity_bus.console.web.render import Frame
from workers.console.index_side import NoIndexError
from workers.console.page_context import PageContext
from workers.console.training_pages import trainers_of

_ROWS: Final = 100
_STEPS: Final = 12
_CHOICES: Final = 5
_VERSIONS: Final = 40  # Whose transfers are drawn


class MeshPages:
    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._feed = context.feed

    def install(self, app: web.Application) -> None:
        self._context.add(app, "/", "overview.html", self._overview)
        self._context.add(app, "/versions", "versions.html", self._versions)

    async def _overview(self, frame: Frame) -> Mapping[str, Any]:
        no_index = ""
        try:
            past, told = await self._feed.index.ask(
                lambda index: (
                    _past(index, frame),
                    {**trainers_of(index, frame), "passed_over": index.passed_over().line},
                )
            )
        except NoIndexError as error:
            past, told, no_index = None, {"trainers": [], "trainer": None, "passed_over": ""}, str(error)
        state = self._feed.state if frame.until is None else None
        return {
            "view": first_page.overview(
                past, state, self._feed.lag, is_record=self._feed.is_record, is_away=self._feed.is_away
            ),
            "no_index": no_index,
            **told,
        }

    async def _versions(self, frame: Frame) -> Mapping[str, Any]:
        ask = PageAsk(_ROWS, frame.query.get("after"))
        model = self._context.settings.mesh.model
        state = self._feed.state if frame.until is None else None

        def answers(index: Index) -> Mapping[str, Any]:
            found = index.versions(ask, model=model, until=frame.until)
            wanted = {version for row in found.rows for version in (row.version, row.version - 1)}
            details = {number: index.version(number, model=model, until=frame.until) for number in wanted}
            known = {number: one for number, one in details.items() if one is not None}
            # Each version tells of all that was passed over on the way to it.
            before = {number: known[number - 1].skipped if number - 1 in known else [] for number in known}
            return {
                "page": found,
                "choices": index.choices(model, rows=_CHOICES, until=frame.until),
                "served": {
                    row.explorer: row.version
                    for row in first_page.alive_then(index.fleet(until=frame.until), index.extent(until=frame.until))
                }
                if frame.until is not None
                else {},
                "metrics": {number: one.metrics for number, one in known.items()},
                "skipped": {n: [batch for batch in one.skipped if batch not in before[n]] for n, one in known.items()},
            }

        told = await self._feed.index.ask(answers)
        if state is not None:
            told = {**told, "served": {e.name: e.model_version for e in state.alive() if e.follows == "trainer"}}
        pinned = next((row.version for row in told["page"].rows if row.pinned), None)
        return {**told, "pinned": pinned}


def _past(index: Index, frame: Frame) -> first_page.Past:
    until, trainer = frame.until, frame.query.get("trainer")
    tests = [name for name in index.metric_names() if name.startswith("eval/") and "/reward/mean@" in name]
    names = [*first_page.BY_STEP, *tests[: first_page.MAX_TESTS]]
    by_step = index.metrics(names, by="step", points=MAX_POINTS, trainer=trainer, until=until)
    by_time = index.metrics(first_page.BY_TIME, by="time", points=MAX_POINTS, trainer=trainer, until=until)
    versions = [index.version(row.version, until=until) for row in index.versions(PageAsk(_VERSIONS), until=until).rows]
    steps = index.steps(PageAsk(_STEPS), trainer=trainer, until=until).rows
    done = next((step.step for step in steps if step.trained_at is not None), None)
    newest = None if done is None or until is None else index.step(done, trainer=trainer, until=until)
    return first_page.Past(
        extent=index.extent(until=until),
        by_step=by_step,
        by_time=by_time,
        steps=steps,
        versions=[one for one in reversed(versions) if one is not None],
        fleet=index.fleet(until=until),
        metrics={} if newest is None else newest.metrics,
        trainers=index.trainers(until=until),
    )
