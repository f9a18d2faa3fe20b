"""Samples, groups and tasks: what the model said, and what became of it."""

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from aiohttp import web

from schemas import ExperienceGroup
from schemas.errors import SchemaError
from schemas.experience import join_groups
from schemas.token_figures import Float16
from trinity_bus.console.index import (
    GroupRow,
    Index,
    PageAsk,
    SampleDetail,
    SampleFilter,
    SamplePlace,
    StepName,
    TaskTimeline,
)
from trinity_bus.console.index.errors import UnreadableError
from trinity_bus.console.web import charts
from trinity_bus.console.web.advantage import Advantages, advantages_of, run_rewards
from trinity_bus.console.web.render import Frame
from trinity_bus.console.web.rollouts import (
    RunView,
    group_runs,
    sample_json,
    task_spans,
    task_tree,
    turns_of,
    way_of_drawing,
)
from trinity_bus.console.web.tokens import PAGE_TOKENS, token_views
from trinity_bus.console.web.turns import prompt_pieces
from trinity_bus.errors import TrinityError
from workers.console.access_control import NotThereError
from workers.console.page_context import BadLinkError, PageContext, count, number, whole
from workers.console.training_pages import BINS, histogram_part

_ROWS: Final = 100
_RUNS: Final = 64
"""Side by side."""
_PARTS: Final = 16
"""Of one group, each a record that is fetched."""
_STEPS: Final = 4
"""That trained on a sample, whose means are shown beside it."""
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

    of: StepName | None = None
    """The step that has."""
    gaps: Float16 | None = None
    entropies: Float16 | None = None
    updates: int = 0
    """Of that step, before."""
    others: Sequence[tuple[StepName, int]] = ()
    """Other steps that have told of it, and by which number to ask for what."""
    trouble: str = ""
    again: int | None = None
    """A step of a live trainer to be trained once more."""

    @property
    def told(self) -> bool:
        """Whether there is something."""
        return self.gaps is not None


@dataclass(frozen=True, slots=True)
class WholeGroup:
    """A group with all its parts: a task may be split over attempts, and its group over records."""

    record: ExperienceGroup
    places: list[SamplePlace]
    """Of each of its samples."""
    parts: int
    advantages: Advantages
    trouble: str = ""
    """Why these are not all parts."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is searched for, as the form has it."""

    text: str = ""
    task: str = ""
    batch: str = ""
    step: str = ""
    trainer: str = ""
    low: str = ""
    high: str = ""
    version_low: str = ""
    version_high: str = ""

    @property
    def any(self) -> bool:
        """Whether there is anything."""
        return any(getattr(self, name) for name in self.__slots__)

    @classmethod
    def of(cls, frame: Frame) -> "Asked":
        """Return what a link asks."""
        return cls(**{name: frame.query.get(name, "").strip() for name in cls.__slots__})


class RolloutPages:
    """Handlers of the pages on tasks, groups and samples.

    Args:
        context: What handlers make pages of.
    """

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._index = context.feed.index
        self._jaeger = (context.settings.console.jaeger_url or "").rstrip("/")

    def install(self, app: web.Application) -> None:
        """Answer in an application."""
        app.router.add_get("/samples", self._samples)
        app.router.add_get(r"/samples/{place:[0-9-]+}.json", self._json)
        app.router.add_get(r"/samples/{place:[0-9-]+}", self._sample)
        app.router.add_get(r"/groups/{partition:\d+}-{offset:\d+}", self._group)
        app.router.add_get("/tasks/{task_id:.+}", self._task)

    # ------------------------------------------------------------------------------------------------------- lists

    async def _samples(self, request: web.Request) -> web.Response:
        async def values(frame: Frame) -> Mapping[str, Any]:
            asked = Asked.of(frame)
            wanted = SampleFilter(
                text=asked.text or None,
                task_id=asked.task or None,
                batch_id=asked.batch or None,
                step=count(frame, "step"),
                trainer=asked.trainer or None,
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

        return await self._context.show(request, "samples.html", values)

    # -------------------------------------------------------------------------------------------------- one sample

    async def _sample(self, request: web.Request) -> web.Response:
        place = place_of(request)

        async def values(frame: Frame) -> Mapping[str, Any]:
            found, task = await self._index.ask(lambda index: sample_and_task(index, place, frame.until))
            means = await self._index.ask(lambda index: _means_of_step(index, found, frame.until))
            by = frame.query.get("by") or "logprob"
            if by not in {name for name, _ in _SHADES}:
                raise BadLinkError(f"by = {by[:40]!r}: tokens have no such colours")
            first = count(frame, "first") or 0
            nothing: Mapping[str, Any] = {
                "tokens": [],
                "metrics": [],
                "prompt": [],
                "turns": [],
                "sampled_with": "",
                "advantage": None,
                "advantages": Advantages(),
                "figures": FiguresView(),
                "missing": (),
            }
            shown: Mapping[str, Any] = {**nothing, "trouble": "", "more": False}
            try:
                whole_group = await self._whole(found, task, frame.until)
                record = await self._record(found.group)
                figures = await self._figures(found, count(frame, "of"))
                shown = await asyncio.to_thread(self._tokens, record, place.number, first, by, figures)
                advantages = whole_group.advantages
                at = whole_group.places.index(place)
                shown = {**shown, "advantages": advantages, "advantage": advantages.at(at)}
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

        return await self._context.show(request, "sample.html", values)

    async def _figures(self, sample: SampleDetail, wanted: int | None) -> FiguresView:
        """Return what a step has told of a sample's tokens.

        Args:
            sample: Which.
            wanted: The offset of the record; of another sample's page, or None, that of the first step that has told.
        """
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
            "turns": turns_of(sample, texts, texts.read) if texts is not None else [],
            "figures": figures,
            "missing": missing,
            "sampled_with": way_of_drawing(sample.sampling),
            "more": first + PAGE_TOKENS < len(sample.tokens),
        }

    async def _json(self, request: web.Request) -> web.Response:
        place, frame = place_of(request), self._context.frame(request)
        found, _ = await self._index.ask(lambda index: sample_and_task(index, place, frame.until))
        record = await self._record(found.group)
        body = await asyncio.to_thread(sample_json, record, place.number, self._index.texts)
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    async def _record(self, group: GroupRow) -> ExperienceGroup:
        return await self._context.feed.records.group(group.partition, group.offset)

    async def _whole(self, sample: SampleDetail, task: TaskTimeline | None, until: float | None) -> WholeGroup:
        """Return the group of a sample with all its parts, and what it teaches."""
        own, trained = sample.group, next(iter(sample.fates), None)
        rows, trouble = parts_of(own, [] if task is None else task.groups), ""
        if len(rows) > _PARTS:
            rows, trouble = [own], f"The group has {len(rows)} parts: this is one of them."
        record = await self._record(own)
        try:
            others = [one for one in rows if one != own]
            fetched = [((row.partition, row.offset), await self._record(row)) for row in others]
        except TrinityError as error:
            fetched, trouble = [], f"Another part of the group cannot be had, this is one of them: {error}"
        fetched.append(((own.partition, own.offset), record))
        if trained is None and share_runs([record for _, record in fetched]):
            fetched = [one for one in fetched if one[0] == (own.partition, own.offset)]
            trouble = "Other attempts had the same runs, and no step says yet which of them count: this is one of them."
        # Parts are named in the order of their run ids.
        fetched.sort(key=lambda one: (int(one[1].run_ids.min()), *one[0]))
        try:
            joined = join_groups([record for _, record in fetched])
        except SchemaError as error:
            raise UnreadableError(str(error)) from error
        places = [SamplePlace(*place, number) for place, record in fetched for number in range(len(record))]
        at = until if trained is None else trained.begun_at
        told = await self._index.ask(lambda index: index.settings(until=at))
        trainer = None if trained is None else trained.step.trainer
        advantages = Advantages(unknown=trouble)
        if not trouble:
            advantages = await asyncio.to_thread(advantages_of, joined, told, trainer)
        return WholeGroup(joined, places, len(fetched), advantages, trouble)

    # ----------------------------------------------------------------------------------------------- groups, tasks

    async def _group(self, request: web.Request) -> web.Response:
        partition, offset = (whole(request.match_info[name], name) for name in ("partition", "offset"))

        async def values(frame: Frame) -> Mapping[str, Any]:
            first = SamplePlace(partition, offset, 0)
            found, task = await self._index.ask(lambda index: sample_and_task(index, first, frame.until))
            runs: list[RunView] = []
            prompt, trouble, parts, samples = None, "", 1, found.group.samples
            rewards: list[float] = []
            advantages, run_ids = Advantages(), 0
            try:
                whole_group = await self._whole(found, task, frame.until)
                trouble, parts, advantages = whole_group.trouble, whole_group.parts, whole_group.advantages
                record, samples = whole_group.record, len(whole_group.record)
                rewards, run_ids = run_rewards(record), len(set(record.run_ids.tolist()))
                texts = self._index.texts
                read = None if texts is None else texts.read
                prompt, runs = await asyncio.to_thread(
                    group_runs, record, whole_group.places, advantages, texts, most=_RUNS, read=read
                )
            except TrinityError as error:
                trouble = f"What was said cannot be had: {error}"
            return {
                "group": found.group,
                "runs": runs,
                "run_ids": run_ids,
                "parts": parts,
                "samples": samples,
                "mean": statistics.fmean(rewards) if rewards else None,
                "deviation": statistics.pstdev(rewards) if rewards else None,
                "advantages": advantages,
                "more_runs": max(0, samples - _RUNS) if runs else 0,
                "prompt": prompt,
                "answer": None if task is None else task.answer,
                "trouble": trouble,
            }

        return await self._context.show(request, "group.html", values)

    async def _task(self, request: web.Request) -> web.Response:
        task_id = request.match_info["task_id"]

        async def values(frame: Frame) -> Mapping[str, Any]:
            task = await self._index.ask(lambda index: index.task(task_id, until=frame.until))
            if task is None:
                raise NotThereError(f"nothing is known of a task {task_id[:100]!r}")
            timeline = charts.timeline("the way of the task", task_spans(task))
            return {"task": task, "tree": task_tree(task), "jaeger": self._jaeger, "chart": timeline}

        return await self._context.show(request, "task.html", values)


def place_of(request: web.Request) -> SamplePlace:
    """Return which sample a link names.

    Raises:
        BadLinkError: None.
    """
    try:
        return SamplePlace.parse(request.match_info["place"])
    except ValueError as error:
        raise BadLinkError(str(error)) from None


def parts_of(own: GroupRow, groups: Sequence[GroupRow]) -> list[GroupRow]:
    """Return the records that together are a task's group.

    Args:
        own: One of them.
        groups: Of all attempts at the task.

    Returns:
        Those that the same step trained on; where none has yet, those of the same batch.
    """
    if own.trained_in:
        return [one for one in groups if own.trained_in[0] in one.trained_in] or [own]
    return [one for one in groups if one.batch_id == own.batch_id] or [own]


def share_runs(parts: Sequence[ExperienceGroup]) -> bool:
    """Whether several attempts had the same runs, so that not all of them count."""
    runs = {(part.attempt, run) for part in parts for run in part.run_ids.tolist()}
    return len({run for _, run in runs}) < len(runs)


def _neighbour(place: SamplePlace, by: int, samples: int) -> SamplePlace | None:
    at = place.number + by
    return SamplePlace(place.partition, place.offset, at) if 0 <= at < samples else None


def _means_of_step(index: Index, sample: SampleDetail, until: float | None) -> list[tuple[StepName, str, float]]:
    """Return what is known of the tokens of the steps that trained on a sample: (step, metric, mean)."""
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
    """Return a sample, and its task where that is known.

    Raises:
        NotThereError: There is no such sample.
    """
    found = index.sample(place, until=until)
    if found is None:
        raise NotThereError(f"sample {place} is not on the log" + ("" if until is None else " at this moment"))
    return found, index.task(found.row.task_id, until=until)
