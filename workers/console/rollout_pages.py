"""Samples, groups and tasks: what the model said, and what became of it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from aiohttp import web

from schemas import ExperienceGroup
from schemas.token_figures import Float16
from trinity_bus.console.index.answers import (
    GroupRow,
    SampleDetail,
    SamplePlace,
    SettingsRow,
    StepName,
    TaskTimeline,
    WholeGroup,
)
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.questions import PageAsk, SampleFilter
from trinity_bus.console.web import rollouts
from trinity_bus.console.web.advantage import Comparison, compare
from trinity_bus.console.web.render import Frame
from trinity_bus.console.web.tokens import PAGE_TOKENS, token_views
from trinity_bus.console.web.turns import prompt_pieces
from trinity_bus.errors import TrinityError
from workers.console.access_control import NotThereError
from workers.console.page_context import BadLinkError, PageContext, asked_of, count, number
from workers.console.training_pages import BINS, histogram_part

_ROWS: Final = 100
_RUNS: Final = 64  # Side by side
_STEPS: Final = 4  # That trained on a sample, whose means are shown beside it
_OF_TOKENS: Final = ("entropy", "mismatch_k3")
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
    others: Sequence[tuple[StepName, int]] = ()  # Other steps that have told of it, and by which number to ask for what
    trouble: str = ""
    again: int | None = None  # A step of a live trainer to be trained once more

    @property
    def told(self) -> bool:
        return self.gaps is not None


_ASKED: Final = ("text", "task", "batch", "step", "trainer", "low", "high", "version_low", "version_high")


class RolloutPages:
    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._index = context.feed.index
        self._jaeger = (context.settings.console.jaeger_url or "").rstrip("/")

    def install(self, app: web.Application) -> None:
        self._context.add(app, "/samples", "samples.html", self._samples)
        app.router.add_get(r"/samples/{place:[0-9-]+}.json", self._json)
        self._context.add(app, r"/samples/{place:[0-9-]+}", "sample.html", self._sample)
        self._context.add(app, r"/groups/{place:\d+-\d+}", "group.html", self._group)
        self._context.add(app, "/tasks/{task_id:.+}", "task.html", self._task)

    # ------------------------------------------------------------------------------------------------------- lists

    async def _samples(self, frame: Frame) -> Mapping[str, Any]:
        asked = asked_of(frame, *_ASKED)
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
        ask = PageAsk(_ROWS, frame.query.get("after"))

        def answers(index: Index) -> Mapping[str, Any]:
            page = index.samples(wanted, ask, until=frame.until)
            part = ""
            # Rewards are not counted by text, and a later page has those of the first.
            if wanted.text is None and ask.after is None:
                found = index.reward_histogram(wanted, bins=BINS, until=frame.until)
                query = {name: value for name, value in frame.query.items() if name not in {"low", "high", "after"}}
                part = histogram_part(self._context, frame, found, query)
            return {"page": page, "histogram_part": part}

        return {"asked": asked, "no_text": self._index.no_texts, **await self._index.ask(answers)}

    # -------------------------------------------------------------------------------------------------- one sample

    async def _sample(self, frame: Frame) -> Mapping[str, Any]:
        place = place_of(frame.names)
        found, task = await self._index.ask(lambda index: sample_and_task(index, place, frame.until))
        means = await self._index.ask(lambda index: _means_of_step(index, found, frame.until))
        by = frame.query.get("by") or "logprob"
        if by not in {name for name, _ in _SHADES}:
            raise BadLinkError(f"by = {by[:40]!r}: tokens have no such colours")
        first = count(frame, "first") or 0
        nothing: dict[str, Any] = dict.fromkeys(("tokens", "metrics", "prompt", "turns", "missing"), ())
        nothing |= {"advantage": None, "comparison": Comparison(), "figures": FiguresView(), "sampled_with": ""}
        shown: Mapping[str, Any] = {**nothing, "trouble": "", "more": False}
        try:
            record = await self._context.feed.records.group([found.group])
            figures = await self._figures(found, count(frame, "of"))
            shown = await asyncio.to_thread(self._tokens, record, place.number, first, by, figures)
            shown = {**shown, **await self._advantage(found, frame.until)}
        except TrinityError as error:
            shown = {**shown, "trouble": f"What it said cannot be had: {error}"}
        samples = found.group.samples
        return {
            "row": found.row,
            "group": found.group,
            "fates": found.fates,
            "means": means,
            "jaeger": self._jaeger,
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

    async def _figures(self, sample: SampleDetail, wanted: int | None) -> FiguresView:
        # ``wanted`` is the offset of a record; where that is not of this sample, the first step that has told counts
        told = [(use.step, use.figures) for use in sample.fates if use.figures is not None]
        if not told:
            trained = (use.step for use in sample.fates if use.left_out is None and use.step.follows is None)
            return FiguresView(again=next((step.step for step in trained), None))
        step, place = next((one for one in told if one[1].offset == wanted), told[0])
        others = [(one, at.offset) for one, at in told if at != place]
        try:
            found = (await self._context.feed.records.figures(place)).of(sample.row.place.number)
        except TrinityError as error:
            return FiguresView(of=step, others=others, trouble=str(error))
        if found is None:
            return FiguresView()
        if len(found[0]) != sample.row.response_tokens:
            return FiguresView(of=step, others=others, trouble=f"{place} is of other tokens")
        gaps, entropies, updates = found
        return FiguresView(of=step, gaps=gaps, entropies=entropies, updates=updates, others=others)

    def _tokens(self, record: ExperienceGroup, at: int, first: int, by: str, figures: FiguresView) -> Mapping[str, Any]:
        sample = list(record.samples())[at]
        others, other = sample.teacher_logprobs, "teacher"
        if figures.gaps is not None and (others is None or by == "mismatch"):
            others, other = sample.logprobs + figures.gaps.astype(np.float64), "trainer"
        missing = [] if figures.told else ["entropy", "mismatch"]
        missing += [] if sample.teacher_logprobs is not None else ["teacher"]
        page = sample.tokens[first : first + PAGE_TOKENS].tolist()
        texts = self._index.texts
        metrics = record.metrics[at] if at < len(record.metrics) else {}
        return {
            "trouble": "",
            "tokens": token_views(
                sample.tokens,
                sample.prompt_length,
                logprobs=sample.logprobs,
                mask=sample.mask,
                versions=[(start, version) for owner, start, version in record.versions.tolist() if owner == at],
                turn_starts=[] if sample.turn_starts is None else sample.turn_starts.tolist(),
                others=others,
                other=other,
                entropies=figures.entropies,
                texts=None if texts is None else texts([[token] for token in page]),
                first=first,
            ),
            "metrics": sorted(metrics.items())[:50],
            "prompt": []
            if texts is None
            else prompt_pieces(sample.tokens[: sample.prompt_length].tolist(), texts, texts.special),
            "turns": rollouts.turns_of(sample, texts, texts.read) if texts is not None else [],
            "figures": figures,
            "missing": missing,
            "sampled_with": rollouts.way_of_drawing(sample.sampling),
            "more": first + PAGE_TOKENS < len(sample.tokens),
        }

    async def _json(self, request: web.Request) -> web.Response:
        frame = self._context.frame(request)
        place = place_of(frame.names)
        found, _ = await self._index.ask(lambda index: sample_and_task(index, place, frame.until))
        record = await self._context.feed.records.group([found.group])
        body = await asyncio.to_thread(rollouts.sample_json, record, place.number, self._index.texts)
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    async def _advantage(self, sample: SampleDetail, until: float | None) -> Mapping[str, Any]:
        place = sample.row.place
        whole, settings = await self._index.ask(lambda index: group_and_settings(index, sample.group, until))
        try:
            group = await self._context.feed.records.group(whole.parts)
            comparison = await asyncio.to_thread(compare, whole, group, settings)
        except TrinityError as error:
            comparison = Comparison(unknown=f"not all of its group can be had: {error}")
        first = whole.first_of(place.partition, place.offset)
        return {"comparison": comparison, "advantage": comparison.of(first + place.number)}

    # ----------------------------------------------------------------------------------------------- groups, tasks

    async def _group(self, frame: Frame) -> Mapping[str, Any]:
        first = place_of(frame.names, number="-0")
        found, task = await self._index.ask(lambda index: sample_and_task(index, first, frame.until))
        whole, settings = await self._index.ask(lambda index: group_and_settings(index, found.group, frame.until))
        nothing: Mapping[str, Any] = {"runs": [], "prompt": None, "comparison": Comparison(), "rewards": None}
        shown: Mapping[str, Any] = {**nothing, "trouble": ""}
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

    async def _task(self, frame: Frame) -> Mapping[str, Any]:
        task_id = frame.names["task_id"]
        task = await self._index.ask(lambda index: index.task(task_id, until=frame.until))
        if task is None:
            raise NotThereError(f"nothing is known of a task {task_id[:100]!r}")
        return {"task": task, "tree": rollouts.task_tree(task), "jaeger": self._jaeger}


def group_and_settings(index: Index, part: GroupRow, until: float | None) -> tuple[WholeGroup, list[SettingsRow]]:
    """Return the group that a record is of, and what trainers had told of their settings when they first took it."""
    whole = index.whole_group(part.partition, part.offset, until=until)
    if whole is None:
        raise NotThereError(f"group {part.partition}-{part.offset} is not on the log")
    begun = whole.uses[0].begun_at if whole.uses else until
    return whole, index.settings(service="trainer", until=begun)


def place_of(names: Mapping[str, str], *, number: str = "") -> SamplePlace:
    try:
        return SamplePlace.parse(names["place"] + number)
    except ValueError as error:
        raise BadLinkError(str(error)) from None


def _neighbour(place: SamplePlace, by: int, samples: int) -> SamplePlace | None:
    at = place.number + by
    return SamplePlace(place.partition, place.offset, at) if 0 <= at < samples else None


def _means_of_step(index: Index, sample: SampleDetail, until: float | None) -> list[tuple[StepName, str, float]]:
    steps = [fate.step for fate in sample.fates if fate.left_out is None][:_STEPS]
    details = ((step, index.step(step.step, trainer=step.trainer, until=until)) for step in steps)
    return [
        (step, name, detail.metrics[name])
        for step, detail in details
        if detail is not None
        for name in _OF_TOKENS
        if name in detail.metrics
    ]


def sample_and_task(index: Index, place: SamplePlace, until: float | None) -> tuple[SampleDetail, TaskTimeline | None]:
    found = index.sample(place, until=until)
    if found is None:
        raise NotThereError(f"sample {place} is not on the log" + ("" if until is None else " at this moment"))
    return found, index.task(found.row.task_id, until=until)
