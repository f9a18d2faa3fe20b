"""A sample, and a group: what the model said, which lies on the log, and what became of it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from aiohttp import web

from schemas import ExperienceGroup
from schemas.token_figures import Float16
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.terms import (
    SampleDetail,
    SamplePlace,
    SettingsRow,
    StepName,
    TaskTimeline,
    WholeGroup,
)
from trinity_bus.console.web import rollouts
from trinity_bus.console.web.advantage import Comparison, compare
from trinity_bus.console.web.render import Frame
from trinity_bus.console.web.rollouts import PAGE_TOKENS
from trinity_bus.errors import TrinityError
from workers.console.page_context import BadLinkError, PageContext, count, there

_RUNS: Final = 64  # Side by side
_SHADES: Final = (
    ("logprob", "log-probability"),
    ("entropy", "entropy"),
    ("mismatch", "trainer over engine"),
    ("version", "version"),
    ("mask", "mask"),
    ("teacher", "teacher"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FiguresView:
    """What a trainer has told of a sample's tokens, or why there is nothing."""

    of: StepName | None = None  # The step that has
    gaps: Float16 | None = None
    entropies: Float16 | None = None
    updates: int = 0  # Of that step, before
    trouble: str = ""

    @property
    def told(self) -> bool:
        return self.gaps is not None


class RolloutPages:
    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._index = context.feed.index

    def install(self, app: web.Application) -> None:
        app.router.add_get(r"/samples/{place:[0-9-]+}.json", self._json)
        self._context.add(app, r"/samples/{place:[0-9-]+}", "sample.html", self._sample)
        self._context.add(app, r"/groups/{place:\d+-\d+}", "group.html", self._group)

    async def _sample(self, frame: Frame) -> Mapping[str, Any]:
        place = place_of(frame.names)
        found, task, whole, settings = await self._index.ask(lambda index: _known(index, place, frame.until))
        by = frame.query.get("by") or "logprob"
        if by not in {name for name, _ in _SHADES}:
            raise BadLinkError(f"by = {by[:40]!r}: tokens have no such colours")
        first = count(frame, "first") or 0
        nothing: dict[str, Any] = dict.fromkeys(("tokens", "metrics", "prompt", "turns", "missing"), ())
        nothing |= {"advantage": None, "comparison": Comparison(), "figures": FiguresView(), "sampled_with": ""}
        shown: Mapping[str, Any] = {**nothing, "trouble": "", "more": False}
        try:
            record = await self._context.feed.records.group([found.group])
            figures = await self._figures(found)
            shown = await asyncio.to_thread(self._tokens, record, place.number, first, by, figures)
            shown = {**shown, **await self._advantage(place, whole, settings)}
        except TrinityError as error:
            shown = {**shown, "trouble": f"What it said cannot be had: {error}"}
        samples = found.group.samples
        return {
            "row": found.row,
            "group": found.group,
            "fates": found.fates,
            "answer": None if task is None else task.answer,
            "previous": _neighbour(place, -1, samples),
            "following": _neighbour(place, 1, samples),
            "by": by,
            "ids": bool(frame.query.get("ids")),
            "shades": _SHADES,
            "first": first,
            "size": PAGE_TOKENS,
            **shown,
        }

    async def _figures(self, sample: SampleDetail) -> FiguresView:
        # Of several steps that have told of it, the first counts: a live trainer's
        told = ((use.step, use.figures) for use in sample.fates if use.figures is not None)
        step, place = next(told, (None, None))
        if place is None:
            return FiguresView()
        try:
            found = (await self._context.feed.records.figures(place)).of(sample.row.place.number)
        except TrinityError as error:
            return FiguresView(trouble=str(error))
        if found is None:
            return FiguresView()
        if len(found[0]) != sample.row.response_tokens:
            return FiguresView(trouble=f"{place} is of other tokens")
        gaps, entropies, updates = found
        return FiguresView(of=step, gaps=gaps, entropies=entropies, updates=updates)

    def _tokens(self, record: ExperienceGroup, at: int, first: int, by: str, figures: FiguresView) -> Mapping[str, Any]:
        sample = list(record.samples())[at]
        others, other = sample.teacher_logprobs, "teacher"
        if figures.gaps is not None and (others is None or by == "mismatch"):
            others, other = sample.logprobs + figures.gaps.astype(np.float64), "trainer"
        missing = [] if figures.told else ["entropy", "mismatch"]
        missing += [] if sample.teacher_logprobs is not None else ["teacher"]
        texts = self._index.texts
        metrics = record.metrics[at] if at < len(record.metrics) else {}
        return {
            "trouble": "",
            "tokens": rollouts.token_views(
                record, at, texts=texts, first=first, others=others, other=other, entropies=figures.entropies
            ),
            "metrics": sorted(metrics.items())[:50],
            "prompt": []
            if texts is None
            else rollouts.prompt_pieces(sample.tokens[: sample.prompt_length].tolist(), texts, texts.special),
            "turns": rollouts.turns(sample, texts, texts.read) if texts is not None else [],
            "figures": figures,
            "missing": missing,
            "sampled_with": rollouts.way_of_drawing(sample.sampling),
            "more": first + PAGE_TOKENS < len(sample.tokens),
        }

    async def _json(self, request: web.Request) -> web.Response:
        frame = self._context.frame(request)
        place = place_of(frame.names)
        found = await self._index.ask(lambda index: sample_of(index, place, frame.until))
        record = await self._context.feed.records.group([found.group])
        body = await asyncio.to_thread(rollouts.sample_json, record, place.number, self._index.texts)
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    async def _advantage(
        self, place: SamplePlace, whole: WholeGroup, settings: Sequence[SettingsRow]
    ) -> Mapping[str, Any]:
        try:
            group = await self._context.feed.records.group(whole.parts)
            comparison = await asyncio.to_thread(compare, whole, group, settings)
        except TrinityError as error:
            comparison = Comparison(unknown=f"not all of its group can be had: {error}")
        first = whole.first_of(place.partition, place.offset)
        return {"comparison": comparison, "advantage": comparison.of(first + place.number)}

    async def _group(self, frame: Frame) -> Mapping[str, Any]:
        first = place_of(frame.names, number="-0")
        found, task, whole, settings = await self._index.ask(lambda index: _known(index, first, frame.until))
        shown: Mapping[str, Any] = {"runs": [], "prompt": None, "comparison": Comparison(), "rewards": None}
        shown = {**shown, "trouble": ""}
        try:
            record = await self._context.feed.records.group(whole.parts)
            shown = {**shown, **await asyncio.to_thread(self._runs, whole, record, settings)}
        except TrinityError as error:
            shown = {**shown, "trouble": f"What was said cannot be had: {error}"}
        samples = sum(part.samples for part in whole.parts)
        return {
            "group": found.group,
            "whole": whole,
            "more_runs": max(0, samples - _RUNS) if shown["runs"] else 0,
            **shown,
            "answer": None if task is None else task.answer,
        }

    def _runs(self, whole: WholeGroup, record: ExperienceGroup, told: Sequence[SettingsRow]) -> Mapping[str, Any]:
        texts = self._index.texts
        read = None if texts is None else texts.read
        comparison = compare(whole, record, told)
        prompt, runs = rollouts.group_runs(
            record, rollouts.sample_places(whole.parts), comparison, texts=texts, most=_RUNS, read=read
        )
        return {"prompt": prompt, "runs": runs, "comparison": comparison, "rewards": rollouts.mean_of_runs(record)}


def sample_of(index: Index, place: SamplePlace, until: float | None) -> SampleDetail:
    return there(index.sample(place, until=until), f"sample {place}", until)


def _known(
    index: Index, place: SamplePlace, until: float | None
) -> tuple[SampleDetail, TaskTimeline | None, WholeGroup, list[SettingsRow]]:
    # A sample, its task, its group, and what trainers had told of their settings when they first took that
    found = sample_of(index, place, until)
    group = index.whole_group(place.partition, place.offset, until=until)
    whole = there(group, f"group {place.partition}-{place.offset}", until)
    begun = whole.uses[0].begun_at if whole.uses else until
    task = index.task(found.row.task_id, until=until)
    return found, task, whole, index.settings(service="trainer", until=begun)


def place_of(names: Mapping[str, str], *, number: str = "") -> SamplePlace:
    try:
        return SamplePlace.parse(names["place"] + number)
    except ValueError as error:
        raise BadLinkError(str(error)) from None


def _neighbour(place: SamplePlace, by: int, samples: int) -> SamplePlace | None:
    at = place.number + by
    return SamplePlace(place.partition, place.offset, at) if 0 <= at < samples else None
