"""Responses under way: written to ``turns`` while they are drawn, and gone on with by the next attempt.

::

    a request to the explorer's own engine
      |--cannot be gone on with, is short, or its engine tells versions with the end alone--> drawn, unwritten
      '--else, each of its responses:
           an earlier attempt has ended it ---> ENDED
           has begun it, or none has ---------> DRAWING, behind what is written of it --its end--> ENDED
                                                   |
           the engine has done ``explorer.turn_tokens`` steps since the checkpoint before, or the explorer drains
                                                   '--> CHECKPOINT: PartialResponses, durable

    a checkpoint       what is not written of all responses of the attempt, also of those that have ended, as they are
                       at the same step. So of none more is lost than of the others: where what was short had to be
                       drawn again, and what is long had not, responses would be longer than the policy draws them
    what was written   of the records that an order's position leads to, those of the same runs of the task
                       --> for each request, of the responses that began with it the one written first: the longest way
                           from record to record; each once

An engine is asked once for whole responses. Nothing is done for each token: at a checkpoint the engine tells what is
new, and that alone is encoded.

A response is known by its content, and by which of its attempt's it is: the digest of what the engine was asked, its
*question*, leads to its first tokens, and the digest of these, ``question_after``, to those behind them. In which order
records come, or how often, makes no difference; tokens of another response lead nowhere, even where the first ones of
both are equal. Which of several equal requests gets which response is as good as chance. An attempt at other runs of
the task gets none: another attempt may have answered with it.

Each token keeps its log-probability, the version that drew it, and the tokens that it was drawn from. The rest is drawn
by the version that the next explorer serves: a response of several versions, as one that was under way while a version
came. Its engine is asked with prompt and tokens, so it tells the routes of all of them; where a response has ended, one
token more is drawn for that. ``max_tokens`` counts all.

A rollback of the trainer discards versions, and their numbers come again with other weights, so numbers say nothing::

    WRITTEN by an attempt --the trainer publishes--> of several versions, all of one lineage: gone on with
        '--RollBack--> the coordinator stops all attempts at tasks of the trained model, and forgets where their records
                       lie --> NOBODY'S
                         |--the next attempt, of a higher number, is told of no record: it begins anew --> WRITTEN
                         |--a stopped attempt writes still, behind these records --> NOBODY'S: an order says up to
                         |  which number attempts were stopped, and of these nothing is taken
                         '--a heartbeat of a stopped attempt tells where its records lie --> it is assigned to nobody

==============================================  ======================================================================
what fails                                      what happens
==============================================  ======================================================================
the explorer is killed                          of each response at most ``turn_tokens`` are drawn again, and those of
                                                the moment in which a record is on its way
the explorer drains                             what is not done after ``drain_s`` is written before it is given back
the log is slow                                 the engine goes on; what it has drawn waits for the checkpoint before
the log fails                                   as for a result: the explorer ends
the next attempt asks otherwise                 its question is not known: it is drawn from the beginning
a seed, stop strings, penalties, structures     nothing is written: ``inference.sampling.can_go_on``
no version is known, or a set is too large      nothing more of that response is written
only the end tells versions: a vLLM server that nothing is written: of ended ones alone, responses would be shorter
follows a trainer
a version that is too old for the batch, what   passed over, with all that leads on from it
no engine of this model can have drawn
a response that a turn has, which is complete   passed over: the workflow has it, with these tokens at its beginning
its workflow fails when it has the response     the next attempt gets the same one again
more than ``MAX_PARTIALS_BYTES`` of an attempt  no more is written of it
==============================================  ======================================================================
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from schemas.groups.kept import decode_kept, encode_kept
from schemas.groups.trainable import Bounds, is_drawn_by
from schemas.sampling import Sampling
from schemas.turn import Answer, DrawnResponse, PartialResponses, question_after
from trinity_bus.chat import Completion, wire
from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.completion import SoFar
from trinity_bus.inference.concurrency import Steps
from trinity_bus.inference.sampling import can_go_on
from trinity_bus.rollout.turns import drawn_responses, kept_completion, question_of_prompt
from trinity_bus.runners.engine import ExplorerEngine
from trinity_bus.runtime.service import first_error

MAX_PARTIALS_BYTES = 8 << 20  # that an attempt writes: about a million tokens
_MAX_KEPT_BYTES = 1 << 20  # of one response in a record, which may have four times as many
_LOOKS = 8  # in the steps that may be lost: so often it is looked what is due

type Write = Callable[[list[Answer]], Awaitable[None]]  # makes tokens durable, of each response those behind a question


class Begun(NamedTuple):
    """What is written of a response: its tokens, and the question that leads to those behind them."""

    behind: str
    whole: Completion


class ResponseInProgress:
    """One response while it is drawn: the ``number``-th of its attempt. Pure."""

    def __init__(self, question: str, begun: Begun, attempt: int, number: int) -> None:
        self.question = question
        self.behind, self.whole = begun
        self.number = number
        self._attempt = attempt
        self._drawn = Completion()  # behind what was written by earlier attempts
        self._written = 0  # tokens of these
        self._is_over = False  # nothing more of it is written

    def more(self, part: Completion) -> Answer | None:
        """Return what is to be written, which counts as written, where so much more was drawn; None: nothing."""
        start, self._written = self._written, self._written + len(part.token_ids)
        if self._is_over or not (part.token_ids or part.finish_reason):
            return None
        part.versions = _spans_between(part.versions, start, self._written)
        is_known = not part.token_ids or _is_known(part.versions)
        is_writable = is_known and len(part.kept or b"") <= _MAX_KEPT_BYTES
        self._is_over = part.finish_reason != "" or not is_writable
        if not is_writable:
            return None
        (response,) = drawn_responses([part])
        question, self.behind = self.behind, question_after(self.behind, response, self._attempt, self.number)
        return Answer(question=question, responses=[response], number=self.number)

    def end(self, drawn: Completion) -> None:
        """Take all that was drawn by this attempt."""
        begun = len(self.whole.token_ids)
        self.whole.add(drawn)
        _append_spans(self.whole, begun, drawn.versions)
        self.whole.routes, self.whole.finish_reason = drawn.routes, drawn.finish_reason
        self._drawn = drawn

    def rest(self) -> Answer | None:
        """Return what is not written of one that has ended; None: nothing."""
        drawn, start = self._drawn, self._written
        kept = drawn.kept
        if kept is not None and start and not self._is_over:
            total = len(drawn.token_ids)
            kept = bytearray(encode_kept(decode_kept(kept, total).of(np.arange(start, total))))
        rest = Completion(drawn.token_ids[start:], drawn.logprobs[start:], drawn.finish_reason, drawn.versions)
        rest.kept = kept
        return self.more(rest)


class EarlierResponses:
    """The responses that earlier attempts have written, in part or whole, by question, each given once. Pure.

    ``told``: what workflows are told of turns that are complete. What no engine within ``bounds`` can have drawn, and
    what is of an older version than ``min_version``, is passed over.
    """

    def __init__(
        self, found: Iterable[PartialResponses], told: Iterable[Answer], bounds: Bounds, min_version: int
    ) -> None:
        self._behind: dict[str, dict[str, DrawnResponse]] = {}  # by question, and by the question after it
        for attempt, answer in ((one.attempt, answer) for one in found for answer in one.answers):
            for response in answer.responses or ():
                if answer.number is not None and _is_sound(response, bounds, min_version):
                    after = question_after(answer.question, response, attempt, answer.number)
                    self._behind.setdefault(answer.question, {})[after] = response
        self._told: dict[str, list[bytes]] = {}
        for answer in told:
            self._told.setdefault(answer.question, []).extend(one.token_ids for one in answer.responses or ())
        self._left: dict[str, list[Begun]] = {}  # of the questions that were asked

    def take(self, question: str, most: int) -> Begun:
        """Return a response to a question, of ``most`` tokens at most and begun or ended if one was."""
        left = self._left.get(question)
        if left is None and (left := self._untold(question)):
            self._left[question] = left
        while left:
            begun = left.pop(0)
            if len(begun.whole.token_ids) + (not begun.whole.finish_reason) <= most:
                return begun
        return Begun(question, Completion())

    def _untold(self, question: str) -> list[Begun]:
        left = [self._longest(after, root) for after, root in self._behind.get(question, {}).items()]
        for tokens in self._told.get(question, ()):
            fitting = [one for one in left if _is_told(one.whole, tokens)]
            # Of those that it may be, the one that came furthest: what is left begins as both.
            if fitting:
                left.remove(max(fitting, key=lambda one: len(one.whole.token_ids)))
        return left

    def _longest(self, after: str, root: DrawnResponse) -> Begun:
        # No record leads back: a question is the digest of all before it.
        lengths, came_from, waiting = {after: (len(root.token_ids), 0)}, dict[str, tuple[str, DrawnResponse]](), [after]
        while waiting:
            at = waiting.pop()
            length, records = lengths[at]
            for further, response in self._behind.get(at, {}).items():
                lengths[further] = length + len(response.token_ids), records + 1
                came_from[further] = at, response
                waiting.append(further)
        last = at = max(lengths, key=lengths.__getitem__)
        way = []
        while at in came_from:
            at, response = came_from[at]
            way.append(response)
        whole = Completion()
        for response in (root, *reversed(way)):
            part = kept_completion(response)
            _append_spans(whole, len(whole.token_ids), part.versions)
            whole.add(part)
            whole.finish_reason = part.finish_reason
        return Begun(last, whole)


NOTHING_EARLIER = EarlierResponses((), (), Bounds(0, 0), 0)


class ResponseDrawer:
    """Draws what an attempt asks of its explorer's engine, and has it written with ``write``."""

    def __init__(
        self, attempt: int, earlier: EarlierResponses, write: Write, settings: ExplorerSettings, *, trained: bool
    ) -> None:
        self._attempt = attempt
        self._trained = trained
        self._earlier = earlier
        self._write = write
        self._settings = settings
        self._numbers = itertools.count()
        self._drawing: dict[int, tuple[SoFar, Sequence[ResponseInProgress]]] = {}  # by the number of the first
        self._ended: dict[str, list[ResponseInProgress]] = {}  # that are not written to their end, by question
        self._steps = Steps()  # of the engine
        self._since = 0.0  # its steps at the last checkpoint
        self._one_at_a_time = asyncio.Lock()  # of checkpoints

    async def draw(
        self, engine: ExplorerEngine, prompt: Sequence[int], sampling: Sampling, n: int, traceparent: str | None
    ) -> Sequence[Completion]:
        """Return ``n`` responses; raises what the engine raises."""
        most = sampling.max_tokens or 0
        is_written = engine.tells_versions and 0 < self._settings.most_lost_tokens < most and can_go_on(sampling)
        if not is_written:
            return await engine.generate(prompt, sampling, n, traceparent, trained=self._trained)
        question = question_of_prompt(prompt, sampling, n)
        room = min(most, self._settings.max_model_len - len(prompt))
        drawn = [
            ResponseInProgress(question, self._earlier.take(question, room), self._attempt, next(self._numbers))
            for _ in range(n)
        ]
        begun = [one for one in drawn if one.whole.token_ids]
        fresh = [one for one in drawn if not one.whole.token_ids]
        try:
            async with asyncio.TaskGroup() as group:
                if fresh:
                    group.create_task(self._draw(engine, prompt, sampling, fresh, traceparent))
                for one in begun:
                    group.create_task(self._go_on(engine, prompt, sampling, one, traceparent))
        except BaseExceptionGroup as errors:
            raise first_error(errors) or errors from None
        return [one.whole for one in drawn]

    @property
    def is_due(self) -> bool:
        """Whether so much may be drawn and not written that the next look could be too late."""
        most = self._settings.most_lost_tokens
        return bool(self._drawing) and self._steps.count - self._since >= most - most // _LOOKS

    async def checkpoint(self) -> bool:
        """Write what is not written of all responses; return whether there was anything, or was still under way."""
        # What was collected counts as written: also where whoever waits is cancelled, and the attempt ends next.
        return await asyncio.shield(self._checkpoint())

    async def _checkpoint(self) -> bool:
        was_writing = self._one_at_a_time.locked()
        async with self._one_at_a_time:
            self._since = self._steps.count
            found = [*self._drawn(), *(one.rest() for ended in self._ended.values() for one in ended)]
            self._ended.clear()
            answers = [answer for answer in found if answer is not None]
            if answers:
                await self._write(answers)
            return bool(answers) or was_writing

    def forget(self, told: Iterable[Answer]) -> None:
        """Note that a turn is durable: what is in it need not be written once more."""
        for answer in told:
            for response in answer.responses or ():
                ended = self._ended.get(answer.question, [])
                tokens = wire.tokens_of(response.token_ids)
                equal = next((one for one in ended if one.whole.token_ids == tokens), None)
                if equal is not None:
                    ended.remove(equal)

    def _drawn(self) -> Iterator[Answer | None]:
        for so_far, drawing in self._drawing.values():
            for one, part in zip(drawing, so_far(), strict=True):
                yield one.more(part)

    async def _go_on(
        self,
        engine: ExplorerEngine,
        prompt: Sequence[int],
        sampling: Sampling,
        one: ResponseInProgress,
        traceparent: str | None,
    ) -> None:
        whole, begun = one.whole, list(one.whole.token_ids)
        if not whole.finish_reason:
            rest = sampling.model_copy(update={"max_tokens": (sampling.max_tokens or 0) - len(begun)})
            await self._draw(engine, [*prompt, *begun], rest, [one], traceparent)
        elif self._settings.capture_routes:
            # An engine tells them of what it has run, which never is the last.
            last = sampling.model_copy(update={"max_tokens": 1})
            (drawn,) = await engine.generate([*prompt, *begun[:-1]], last, 1, traceparent)
            whole.routes = drawn.routes

    async def _draw(
        self,
        engine: ExplorerEngine,
        prompt: Sequence[int],
        sampling: Sampling,
        drawing: Sequence[ResponseInProgress],
        traceparent: str | None,
    ) -> None:
        number = drawing[0].number

        def watch(so_far: SoFar) -> None:
            self._steps = engine.steps
            if not self._drawing:
                self._since = self._steps.count
            self._drawing[number] = so_far, drawing

        try:
            drawn = await engine.generate(
                prompt, sampling, len(drawing), traceparent, watch=watch, trained=self._trained
            )
        finally:
            self._drawing.pop(number, None)
        for one, completion in zip(drawing, drawn, strict=True):
            one.end(completion)
            self._ended.setdefault(one.question, []).append(one)


async def write_when_due(
    drawers: Callable[[], Iterable[ResponseDrawer]], steps: Steps, settings: ExplorerSettings
) -> None:
    """Write what is drawn of long responses, as long as this runs; raises what ``write`` does."""
    looked = steps.count
    while True:
        await steps.reach(looked + max(1, settings.most_lost_tokens // _LOOKS))
        # What comes while the log is slow is looked at as soon as it is not.
        looked = steps.count
        writing = []
        for drawer in drawers():
            if drawer.is_due:
                writing.append(asyncio.create_task(drawer.checkpoint(), name="long responses"))
                # It encodes what is new of all responses of an attempt; then others have the loop.
                await asyncio.sleep(0)
        await asyncio.gather(*writing)


def _is_told(whole: Completion, tokens: bytes) -> bool:
    known = wire.token_bytes(whole.token_ids)
    return known == tokens if whole.finish_reason else tokens.startswith(known)


def _append_spans(whole: Completion, at: int, spans: Iterable[tuple[int, int]]) -> None:
    # Those of tokens that stand behind ``at`` others.
    for start, version in spans:
        if not whole.versions or whole.versions[-1][1] != version:
            whole.versions.append((at + start, version))


def _spans_between(spans: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    before = [version for first, version in spans if first <= start][-1:]
    return [(0, version) for version in before] + [(at - start, version) for at, version in spans if start < at < end]


def _is_known(spans: Sequence[Sequence[int]]) -> bool:
    # Whether the version of the first token is, and so that of all behind it.
    return bool(spans) and spans[0][0] == 0


def _is_sound(response: DrawnResponse, bounds: Bounds, min_version: int) -> bool:
    if not response.token_ids:
        return response.finish_reason != ""
    starts, versions = [start for start, _ in response.versions], [version for _, version in response.versions]
    return (
        _is_known(response.versions)
        and min(versions) >= min_version
        and starts[-1] < len(response.token_ids) // 4
        and all(one < other for one, other in pairwise(starts))
        and is_drawn_by(
            np.frombuffer(response.token_ids, "<i4"), np.frombuffer(response.logprobs, "<f4"), response.kept, bounds
        )
    )
