"""The model asked once more for what a sample was asked, under the weights that some explorer serves now.

::

    a sample's page --> which version? (those that explorers serve, who can be asked over HTTP)
                    --an operator says yes--> an explorer of this version is given the same prompt tokens
                                          '-> how likely the old answer is under it --> both answers side by side

It is asked as a gateway asks, past the log: nothing is trained on it, and no batch waits. Who asked is in this
process's log. Heartbeats say where explorers answer, and prove it by ``explorer.http_key``; without that key nobody is
asked. An explorer that takes new weights amid the answer goes on with these: the page says which version drew what.

==================================  ====================================================================================
what fails                          the page says
==================================  ====================================================================================
no key, no explorer over HTTP       what is to be set
the version is not served any more  so
no answer in time, or refused       so, with the explorer's own reason
the old answer cannot be weighed    the new one, and why
==================================  ====================================================================================
"""

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from pydantic import ValidationError

from schemas import ExperienceGroup
from schemas.experience import Sample, SampledWith
from schemas.sampling import MAX_TEMPERATURE, Sampling
from trinity_bus import awake
from trinity_bus.chat.messages import Completion
from trinity_bus.console.web.rollouts import sample_tokens, turns_of, way_of_drawing
from trinity_bus.console.web.sample_view import token_views
from trinity_bus.errors import TrinityError
from trinity_bus.gateway.explorers import Explorers
from trinity_bus.gateway.fleet import ServingFleet
from workers.console.access_control import form, operator
from workers.console.page_context import BadLinkError, PageContext, whole
from workers.console.rollout_pages import place_of, sample_of

log = logging.getLogger("workers.console")

_TIMEOUT_S: Final = 120.0
_MOST_TOKENS: Final = 4096  # Of an answer: what one page of tokens shows
_AT_ONCE: Final = 2  # Answers that are drawn for this console; more wait
_NO_KEY: Final = (
    "explorers are asked over HTTP: set explorer.http_port and explorer.http_key for them, and the key for the console"
)


@dataclass(frozen=True, slots=True)
class _Answered:
    drawing: Completion
    old: list[float]  # how likely each token of the old answer is now; empty where nobody could say
    trouble: str = ""  # why


class AskAgain:
    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._feed = context.feed
        self._places = asyncio.Semaphore(_AT_ONCE)

    def install(self, app: web.Application) -> None:
        app.router.add_get(r"/samples/{place:[0-9-]+}/again", self._which)
        app.router.add_post(r"/samples/{place:[0-9-]+}/again", self._ask)

    async def _which(self, request: web.Request) -> web.Response:
        operator(request)
        place = place_of(request.match_info)
        _, sample = await self._sample(request)
        trouble, versions = "", dict[int, list[str]]()
        try:
            for one in self._fleet().usable(awake.now()):
                versions.setdefault(one.version, []).append(one.name)
            trouble = "" if versions else "No explorer that can be asked over HTTP serves the model now."
        except TrinityError as error:
            trouble = f"Nobody can be asked: {error}."
        return self._context.render(
            request,
            "ask_again.html",
            place=place,
            versions=sorted(versions.items(), reverse=True),
            trouble=trouble,
            tokens=min(max(len(sample.logprobs), 1), _MOST_TOKENS),
            most=_MOST_TOKENS,
            temperature=1.0 if sample.sampling is None else round(sample.sampling.temperature, 4),
            drawn_with=way_of_drawing(sample.sampling),
            several=sample.mask.size > 0 and not sample.mask.all(),
        )

    async def _ask(self, request: web.Request) -> web.Response:
        who = operator(request).name
        place, said = place_of(request.match_info), await form(request)
        version = whole(said.get("version", ""), "version")
        group, sample = await self._sample(request)
        sampling = _sampling(said, sample.sampling)
        log.warning("%s asks version %d again for what sample %s was asked", who, version, place)
        try:
            answered = await self._answer(version, sample, sampling)
        except TrinityError as error:
            return self._context.told(request, "There is no answer", str(error), f"/samples/{place}", "bad")
        shown = await asyncio.to_thread(self._shown, group, sample, place.number, version, answered)
        return self._context.render(
            request,
            "answered_again.html",
            place=place,
            task_id=group.task_id,
            version=version,
            trouble=answered.trouble,
            old_version=sample.version_max,
            reward_then=sample.reward if math.isfinite(sample.reward) else None,
            **shown,
        )

    async def _answer(self, version: int, sample: Sample, sampling: Sampling) -> _Answered:
        fleet = self._fleet(version)
        if not fleet.usable(awake.now()):
            raise TrinityError(f"no explorer that can be asked serves version {version} any more")
        prompt = sample.tokens[: sample.prompt_length].tolist()
        async with self._places, Explorers(fleet, key=self._key(), wait_s=0.0, timeout_s=_TIMEOUT_S) as explorers:
            (drawing,) = await explorers.draw(prompt, sampling)
            try:
                old = await explorers.score(sample.tokens.tolist(), sample.prompt_length)
            except TrinityError as error:
                return _Answered(drawing, [], f"How likely the old answer is now cannot be said: {error}")
        return _Answered(drawing, old)

    def _shown(
        self, group: ExperienceGroup, sample: Sample, at: int, version: int, answered: _Answered
    ) -> Mapping[str, Any]:
        texts, drawing = self._feed.index.texts, answered.drawing
        drawn, everything = drawing.token_ids, [True] * len(drawing.token_ids)
        old: dict[str, Any] = {
            "first": sample.prompt_length,
            "others": answered.old,
            "other": f"version {version} less then",
        }
        new: dict[str, Any] = {"logprobs": drawing.logprobs, "mask": everything, "versions": drawing.versions}
        return {
            "old": turns_of(sample, texts, None if texts is None else texts.read),
            "old_tokens": sample_tokens(group, at, texts, **old) if answered.old else [],
            "text": " ".join(map(str, drawn)) if texts is None else texts([drawn])[0],
            "tokens": token_views(drawn, 0, **new, texts=texts),
            "drawn_by": sorted({version for _, version in drawing.versions}),
            "finish_reason": drawing.finish_reason,
            "then": _mean(sample.logprobs.tolist(), sample.mask.tolist()),
            "now": _mean(answered.old, sample.mask.tolist()),
            "mean": _mean(drawing.logprobs, everything),
        }

    async def _sample(self, request: web.Request) -> tuple[ExperienceGroup, Sample]:
        place = place_of(request.match_info)
        found = await self._feed.index.ask(lambda index: sample_of(index, place, None))
        record = await self._feed.records.group([found.group])
        return record, list(record.samples())[place.number]

    def _key(self) -> str:
        key = self._context.settings.explorer.http_key
        if key is None:
            raise TrinityError(_NO_KEY)
        return key.get_secret_value()

    def _fleet(self, version: int | None = None) -> ServingFleet:
        model = self._context.settings.mesh.model
        # Who is silent is left out here already, by the clock of the log.
        fleet = ServingFleet(model, model=model, key=self._key(), silence_s=math.inf)
        for one in self._feed.state.alive():
            if one.beat is not None and one.model_version >= 0 and version in {None, one.model_version}:
                fleet.heard(one.beat.model_copy(update={"model_version": one.model_version}), awake.now())
        return fleet


def _sampling(said: Mapping[str, str], drawn_with: SampledWith | None) -> Sampling:
    limits: dict[str, float] = {}
    if drawn_with is not None and not math.isnan(drawn_with.top_p):
        limits = {"top_p": drawn_with.top_p, "top_k": drawn_with.top_k, "min_p": drawn_with.min_p}
    most = whole(said.get("max_tokens", ""), "max_tokens")
    if not 1 <= most <= _MOST_TOKENS:
        raise BadLinkError(f"max_tokens = {most}: an answer has 1 to {_MOST_TOKENS} tokens")
    try:
        return Sampling(max_tokens=most, temperature=float(said.get("temperature", "")), **limits)
    except (ValidationError, ValueError):
        raise BadLinkError(f"temperature is a number from 0 to {MAX_TEMPERATURE}") from None


def _mean(logprobs: Sequence[float], counts: Sequence[bool]) -> float | None:
    # The mean over the tokens that the model has said; None where there is none
    own = [value for value, counted in zip(logprobs, counts, strict=True) if counted] if logprobs else []
    return math.fsum(own) / len(own) if own else None
