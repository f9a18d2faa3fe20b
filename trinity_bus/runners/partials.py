"""Responses under way: written to ``turns`` while they are drawn, and gone on with by the next attempt.

::

    a request to the explorer's own engine
      |--cannot be gone on with, is short, or its engine tells versions with the end alone--> drawn at once, unwritten
      '--else, each of its responses:
           an earlier attempt has ended it ---> ENDED
           has begun it, or none has ---------> DRAWING, behind what is written of it --its end--> ENDED
                                                   |
           it has ``explorer.turn_tokens`` more than is written, or the explorer drains
                                                   '--> CHECKPOINT: PartialResponses, durable

    a checkpoint       what is not written of all responses of the attempt, also of those that have ended. So of none
                       more is lost than of the others: where what was short had to be drawn again, and what is long
                       had not, responses would be longer than the policy draws them
    what was written   of the records that an order's position leads to, those of the same runs of the task
                       --> for each request, of the responses that began with it the one written first: the longest way
                           from record to record; each once

A response is known by its content: the digest of what the engine was asked, its *question*, leads to its first tokens,
and the digest of these, ``question_after``, to those behind them. Which explorer wrote a record, in which order, or how
often, makes no difference; tokens of another response lead nowhere. An ended response is one for each time that it is
written: short ones are often equal. Which of several equal requests gets which response is as good as chance. An
attempt at other runs of the task gets none: another attempt may have answered with it.

Each token keeps its log-probability, the version that drew it, and the tokens that it was drawn from. The rest is drawn
by the version that the next explorer serves: a response of several versions, as one that was under way while a version
came. Its engine is asked with prompt and tokens, so it tells the routes of all of them; where a response has ended, one
token more is drawn for that. Of one that goes on, no token is written before others have come after it: none is its
end. Nor is its beginning written before it has several pieces: many begin with the same few tokens, all but certain,
and of those that share all that a first record has, the longest alone is found. ``max_tokens`` counts all.

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
a request is cancelled amid a write             the write goes on: the tokens of others are in it
more than ``MAX_PARTIALS_BYTES`` of an attempt  no more is written of it
the version was discarded                       the order names no position: ``coordination.events.endings``
==============================================  ======================================================================
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from itertools import chain, pairwise

import numpy as np

from schemas.groups.kept import extended
from schemas.groups.trainable import Bounds, is_drawn_by
from schemas.sampling import Sampling
from schemas.turn import Answer, DrawnResponse, PartialResponses, question_after
from trinity_bus.chat import Completion, wire
from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.sampling import can_go_on
from trinity_bus.rollout.turns import drawn_responses, kept_completion, question_of_prompt
from trinity_bus.runners.engine import ExplorerEngine
from trinity_bus.runtime.service import first_error

MAX_PARTIALS_BYTES = 8 << 20  # that an attempt writes: about a million tokens
_MAX_KEPT_BYTES = 1 << 20  # of one response in a record, which may have four times as many
_PIECES = 16  # in which as many tokens come as may be lost
_FIRST_PIECES = 3  # that a response has at least when its beginning is written

type Write = Callable[[list[Answer]], Awaitable[None]]  # makes tokens durable, of each response those behind a question


class ResponseInProgress:
    """One response while it is drawn. Pure.

    ``question``: that it answers; ``behind``: that its next tokens do, after what is written of it, ``whole``.
    """

    def __init__(self, question: str, behind: str | None = None, whole: Completion | None = None) -> None:
        self.question = question
        self.whole = whole or Completion()
        self._behind = behind or question
        self._begun = len(self.whole.token_ids)  # tokens of earlier attempts
        self._spans = list(self.whole.versions)  # of these
        self._written = self._begun
        self._told = self._begun  # of which versions are known
        self._pieces: list[Completion] | None = []  # that are not written; None: nothing more is

    @property
    def left(self) -> int:
        """How many tokens are to be written."""
        return 0 if self._pieces is None else len(self.whole.token_ids) - self._written

    def take(self, more: Completion) -> None:
        """Take what has come, with the versions of all that this attempt has drawn."""
        _append(self.whole, more)
        if more.versions:
            self.whole.versions = list(self._spans)
            _append_spans(self.whole, self._begun, more.versions)
            self._told = len(self.whole.token_ids)
        self.whole.routes, self.whole.finish_reason = more.routes, more.finish_reason
        if more.token_ids and self._pieces is not None:
            self._pieces.append(more)

    def unwritten(self) -> Answer | None:
        """Return what is to be written now, which counts as written; None: nothing.

        Of a response that has ended, all; else all but the newest piece.
        """
        if self._pieces is None:
            return None
        over = self.whole.finish_reason
        if not over and len(self._pieces) < (2 if self._written else _FIRST_PIECES):
            return None
        ready, rest = (self._pieces, None) if over else (self._pieces[:-1], self._pieces[-1:])
        end = self._written + sum(len(piece.token_ids) for piece in ready)
        if not over and end > self._told:
            return None
        self._pieces = rest
        part = Completion(finish_reason=over)
        for piece in ready:
            _append(part, piece)
        part.versions = _spans_between(self.whole.versions, self._written, end)
        is_known = _is_known(part.versions) and end <= self._told
        if ready and not (is_known and len(part.kept or b"") <= _MAX_KEPT_BYTES):
            self._pieces = None
            return None
        (response,) = drawn_responses([part])
        question, self._behind, self._written = self._behind, question_after(self._behind, response), end
        return Answer(question=question, responses=[response])


class EarlierResponses:
    """The responses that earlier attempts have written, in part or whole, by question, each given once. Pure.

    ``told``: what workflows are told of turns that are complete. What no engine within ``bounds`` can have drawn, and
    what is of an older version than ``min_version``, is passed over.
    """

    def __init__(
        self, found: Iterable[PartialResponses], told: Iterable[Answer], bounds: Bounds, min_version: int
    ) -> None:
        self._behind: dict[str, dict[str, DrawnResponse]] = {}  # by question, and by the question after it
        for answer in (answer for record in found for answer in record.answers):
            for response in answer.responses or ():
                if _is_sound(response, bounds, min_version):
                    behind = self._behind.setdefault(answer.question, {})
                    after = question_after(answer.question, response)
                    # Nothing is behind one that has ended, and several may be equal.
                    behind.setdefault(f"{after} {len(behind)}" if response.finish_reason else after, response)
        self._told: dict[str, list[bytes]] = {}
        for answer in told:
            self._told.setdefault(answer.question, []).extend(one.token_ids for one in answer.responses or ())

    def take(self, question: str, most: int) -> ResponseInProgress:
        """Return a response to a question, of ``most`` tokens at most and begun or ended if one was."""
        roots = self._behind.get(question, {})
        while roots:
            after = next(iter(roots))
            behind, whole = self._longest(after, roots.pop(after))
            if self._was_told(question, whole):
                continue
            if len(whole.token_ids) + (not whole.finish_reason) <= most:
                return ResponseInProgress(question, behind, whole)
        return ResponseInProgress(question)

    def _was_told(self, question: str, whole: Completion) -> bool:
        # Each that was is so once.
        told, tokens = self._told.get(question, []), wire.token_bytes(whole.token_ids)
        for at, one in enumerate(told):
            if one == tokens if whole.finish_reason else one.startswith(tokens):
                del told[at]
                return True
        return False

    def _longest(self, after: str, root: DrawnResponse) -> tuple[str, Completion]:
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
            _append(whole, part)
            whole.finish_reason = part.finish_reason
        return last, whole


NOTHING_EARLIER = EarlierResponses((), (), Bounds(0, 0), 0)


class ResponseDrawer:
    """Draws what an attempt asks of its explorer's engine, and has it written with ``write``."""

    def __init__(self, earlier: EarlierResponses, write: Write, settings: ExplorerSettings, *, trained: bool) -> None:
        self._trained = trained
        self._earlier = earlier
        self._write = write
        self._settings = settings
        self._piece = max(1, settings.turn_tokens // _PIECES)
        self._drawing: dict[ResponseInProgress, None] = {}
        # What is not written of those that have ended, by question and tokens, which several may have.
        self._ended: dict[tuple[str, bytes], list[Answer]] = {}

    async def draw(
        self, engine: ExplorerEngine, prompt: Sequence[int], sampling: Sampling, n: int, traceparent: str | None
    ) -> Sequence[Completion]:
        """Return ``n`` responses; raises what the engine raises, and what ``write`` does."""
        most = sampling.max_tokens or 0
        is_written = engine.tells_versions and 0 < self._settings.turn_tokens < most and can_go_on(sampling)
        if not is_written:
            return await engine.generate(prompt, sampling, n, traceparent, trained=self._trained)
        question = question_of_prompt(prompt, sampling, n)
        room = min(most, self._settings.max_model_len - len(prompt))
        drawn = [self._earlier.take(question, room) for _ in range(n)]
        begun = [one for one in drawn if one.whole.token_ids]
        fresh = [one for one in drawn if not one.whole.token_ids]
        self._drawing.update(dict.fromkeys(one for one in drawn if not one.whole.finish_reason))
        try:
            async with asyncio.TaskGroup() as group:
                if fresh:
                    group.create_task(self._stream(engine, prompt, sampling, fresh, traceparent))
                for one in begun:
                    group.create_task(self._go_on(engine, prompt, sampling, one, traceparent))
        except BaseExceptionGroup as errors:
            raise first_error(errors) or errors from None
        finally:
            for one in drawn:
                self._drawing.pop(one, None)
        return [one.whole for one in drawn]

    async def checkpoint(self) -> bool:
        """Write what is not written of all responses; return whether there was anything."""
        answers = [answer for one in self._drawing if (answer := one.unwritten()) is not None]
        answers += chain.from_iterable(self._ended.values())
        self._ended.clear()
        if answers:
            await self._write(answers)
        return bool(answers)

    def forget(self, told: Iterable[Answer]) -> None:
        """Note that a turn is durable: what is in it need not be written once more."""
        for answer in told:
            for response in answer.responses or ():
                key = answer.question, response.token_ids
                if equal := self._ended.pop(key, [])[1:]:
                    self._ended[key] = equal

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
            await self._stream(engine, [*prompt, *begun], rest, [one], traceparent)
        elif self._settings.capture_routes:
            # An engine tells them of what it has run, which never is the last.
            last = sampling.model_copy(update={"max_tokens": 1})
            (drawn,) = await engine.generate([*prompt, *begun[:-1]], last, 1, traceparent)
            whole.routes = drawn.routes

    async def _stream(
        self,
        engine: ExplorerEngine,
        prompt: Sequence[int],
        sampling: Sampling,
        drawing: Sequence[ResponseInProgress],
        traceparent: str | None,
    ) -> None:
        parts = engine.stream(prompt, sampling, len(drawing), traceparent, every=self._piece, trained=self._trained)
        async with aclosing(parts):
            async for index, more in parts:
                one = drawing[index]
                one.take(more)
                if more.finish_reason:
                    del self._drawing[one]
                    if (answer := one.unwritten()) is not None:
                        tokens = wire.token_bytes(one.whole.token_ids)
                        self._ended.setdefault((one.question, tokens), []).append(answer)
                # Another piece may come before this is durable.
                elif one.left >= self._settings.turn_tokens - self._piece:
                    await self.checkpoint()


def _append(whole: Completion, more: Completion) -> None:
    # Tokens, with all that is told of each but its version.
    whole.kept = extended(whole.kept, len(whole.token_ids), more.kept, len(more.token_ids))
    whole.token_ids += more.token_ids
    whole.logprobs += more.logprobs


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
