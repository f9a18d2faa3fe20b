"""What a run has asked and been answered, turn by turn: kept as it goes, and answered again to the next attempt. Pure.

::

    a question --known from an earlier attempt--> its answer, once                        (nothing is drawn or called)
               '--not known--> asked --> NOTED --complete()--> WRITTEN --durable()--> DURABLE

A call is durable when it has returned. A turn that has ended is written while the next one is drawn: the end of that, a
call, and the end of the run wait for it, so that one at most is under way.

A question is known by a digest: of the prompt's tokens, how many responses and how they are drawn; or of a call's name
and arguments. The order in which questions come does not matter, and the same question asked twice gets two answers.

Failures: what was answered and is in no completed turn is asked again by the next attempt: at most what was drawn since
the last call, and the call under way. What cannot be written is told to whoever waits for it next. What an attempt of
another workflow asks is simply not known.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from schemas.sampling import Sampling
from schemas.turn import Answer, DrawnResponse, Turn
from trinity_bus.chat import Completion, wire

_MAX_KEPT_BYTES = 1 << 20  # a quarter of a turn
_MAX_RUN_KEPT_BYTES = 1 << 18  # an attempt may have a hundred runs, and 32 MiB of turns

type Write = Callable[[Turn], Coroutine[Any, Any, None]]  # returns when a turn is durable


class RunTurns:
    """The turns of one run.

    ``done``: what earlier attempts have completed, in order. Each turn of this attempt is ``like`` one, but for its
    number, the attempt of the one before, and its answers.
    """

    def __init__(self, done: Sequence[Turn], like: Turn, write: Write) -> None:
        self._like = like
        self._write = write
        self._next = len(done)
        self._after = done[-1].attempt if done else 0
        self._known: dict[str, deque[Answer]] = {}
        for turn in done:
            for answer in turn.answers:
                self._known.setdefault(answer.question, deque()).append(answer)
        self._noted: list[Callable[[], Answer]] = []
        self._kept_left = _MAX_RUN_KEPT_BYTES
        self._writing: asyncio.Task[None] | None = None
        self.resumed = len(done)  # how many turns were completed before
        # how often each question was answered in them
        self.answered = {question: len(answers) for question, answers in self._known.items()}

    def drawn(self, prompt: Sequence[int], sampling: Sampling, n: int, pool: str = "") -> Sequence[Completion] | None:
        """Return what an engine has drawn before; None where it is to be asked."""
        answer = self._take(question_of_prompt(prompt, sampling, n, pool)) if self._known else None
        return None if answer is None else [kept_completion(one) for one in answer.responses or ()]

    def note_drawn(
        self, prompt: Sequence[int], sampling: Sampling, n: int, given: Sequence[Completion], pool: str = ""
    ) -> None:
        """Note what an engine has drawn. Nothing is made of it before the turn is over: most runs have none."""
        # The prompt may be a list that goes on growing.
        asked = list(prompt)
        self._noted.append(
            lambda: Answer(question=question_of_prompt(asked, sampling, n, pool), responses=self._drawn(given))
        )

    def result(self, name: str, arguments: Any) -> tuple[Any] | None:
        answer = self._take(question_of_call(name, arguments)) if self._known else None
        return None if answer is None or answer.result is None else (msgspec.json.decode(answer.result),)

    def note_result(self, name: str, arguments: Any, value: Any) -> None:
        """Note what a call has returned; TypeError where JSON cannot hold it."""
        answer = Answer(question=question_of_call(name, arguments), result=msgspec.json.encode(value).decode())
        self._noted.append(lambda: answer)

    async def complete(self) -> None:
        """Note that a turn is over. It is being written when this returns, and the one before is durable.

        A turn of which nothing is new, because an earlier attempt has completed it, is passed over. What has
        failed of the turn before is raised.
        """
        while self._writing is not None:
            # Several turns of a run may be over at the same time.
            await self.durable()
        if not self._noted:
            return
        noted, self._noted = self._noted, []
        new = {"number": self._next, "after": self._after, "answers": [make() for make in noted]}
        turn = self._like.model_copy(update=new)
        self._next, self._after = turn.number + 1, turn.attempt
        self._writing = asyncio.create_task(self._write(turn))
        self._writing.add_done_callback(_look_at)

    async def durable(self) -> None:
        """Return when all that was completed is durable; SchemaError where it is too large, or its keeper's error."""
        writing = self._writing
        if writing is None:
            return
        try:
            await asyncio.shield(writing)
        finally:
            if writing.done() and self._writing is writing:
                self._writing = None

    def _drawn(self, given: Sequence[Completion]) -> list[DrawnResponse]:
        responses = drawn_responses(given, self._kept_left)
        self._kept_left -= sum(len(one.kept or b"") for one in responses)
        return responses

    def _take(self, question: str) -> Answer | None:
        known = self._known.get(question)
        return known.popleft() if known else None


def _look_at(writing: asyncio.Task[None]) -> None:
    # The error of one that a run which has failed no longer waits for.
    if not writing.cancelled():
        writing.exception()


def question_of_prompt(prompt: Sequence[int], sampling: Sampling, n: int, pool: str = "") -> str:
    """Return the digest of what an engine is asked; of one of another pool, where one is named."""
    asked = hashlib.blake2b(wire.token_bytes(prompt), digest_size=16)
    asked.update(f"{pool}/{n}/{sampling.model_dump_json(exclude_none=True)}".encode())
    return asked.hexdigest()


def question_of_call(name: str, arguments: Any) -> str:
    return hashlib.blake2b(msgspec.json.encode([name, arguments], order="sorted"), digest_size=16).hexdigest()


def drawn_responses(given: Sequence[Completion], most: int = _MAX_KEPT_BYTES) -> list[DrawnResponse]:
    """Return responses to be kept, without sets of kept tokens where these have more than ``most`` bytes together."""
    kept = sum(len(one.kept or b"") for one in given) <= most
    return [
        DrawnResponse(
            token_ids=wire.token_bytes(one.token_ids),
            logprobs=wire.logprob_bytes(one.logprobs),
            finish_reason=one.finish_reason,
            versions=[[start, version] for start, version in one.versions],
            kept=bytes(one.kept) if kept and one.kept is not None else None,
        )
        for one in given
    ]


def kept_completion(kept: DrawnResponse) -> Completion:
    """Return a response that was kept, without routes: a turn drawn behind it tells them for all tokens before."""
    return Completion(
        wire.tokens_of(kept.token_ids),
        wire.logprobs_of(kept.logprobs),
        kept.finish_reason,
        [(start, version) for start, version in kept.versions],
        kept=None if kept.kept is None else bytearray(kept.kept),
    )
