"""What a server answers to ``/v1/completions``, as token ids and log-probabilities. Pure.

A choice has ``token_ids`` where ``return_token_ids`` was asked for, and ``logprobs.token_logprobs``, a number for each.
An answer that lacks one of them is a ``GenerationError``: text is never made into token ids again.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec

from schemas.task import MAX_REPEAT_TIMES
from trinity_bus.inference.completion import Completion, EngineDelta
from trinity_bus.inference.concurrency import EngineLoad
from trinity_bus.inference.errors import GenerationError

type _Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class Logprobs(msgspec.Struct):
    """Log-probabilities of the tokens of a choice, or with ``echo`` of its prompt's too."""

    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class AnsweredChoice(msgspec.Struct):
    """A response, or what is new of it."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0
    token_ids: list[_Token] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class ServerAnswer(msgspec.Struct):
    """The body of an answer, or of an event of a stream."""

    choices: Annotated[list[AnsweredChoice], msgspec.Meta(max_length=MAX_REPEAT_TIMES)] = []
    """No request asks for more."""


TOP: Final = 5
"""Likeliest tokens that the first request asks for: as many as OpenAI's completions tell."""
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading an answer raises where it is none."""
_ANSWERS: Final = msgspec.json.Decoder(ServerAnswer)


def read_answer(body: bytes) -> ServerAnswer:
    """Read an answer.

    Raises:
        GenerationError: It is none.
    """
    try:
        return _ANSWERS.decode(body)
    except UNREADABLE as error:
        raise GenerationError(f"the server's answer cannot be read: {error}") from error


def completion_of(choice: AnsweredChoice, versions: list[tuple[int, int]]) -> Completion:
    """Return a whole response.

    Raises:
        GenerationError: It is not whole, or its tokens and log-probabilities differ in number.
    """
    token_ids, logprobs = _drawn(choice)
    if choice.finish_reason not in {"stop", "length"}:
        raise GenerationError(f"a response ended after {len(token_ids)} tokens with {choice.finish_reason!r}")
    return Completion(token_ids, logprobs, choice.finish_reason, versions)


def delta_of(choice: AnsweredChoice, versions: list[tuple[int, int]]) -> EngineDelta:
    """Return what is new of a response; see ``completion_of``."""
    if choice.finish_reason not in {None, "stop", "length"}:
        raise GenerationError(f"a response ended with {choice.finish_reason!r}")
    ended = choice.finish_reason is not None
    if ended and not choice.token_ids:
        # The last event may tell the reason alone.
        return EngineDelta(choice.index, [], [], choice.finish_reason, versions)
    token_ids, logprobs = _drawn(choice)
    return EngineDelta(choice.index, token_ids, logprobs, choice.finish_reason, versions if ended else [])


def scores_of(answer: ServerAnswer, tokens: int, start: int) -> list[float]:
    """Return the log-probability of each of a prompt's tokens from ``start`` on, from an answer that echoes it.

    Raises:
        GenerationError: One is missing.
    """
    said = answer.choices[0].logprobs if answer.choices else None
    found = [] if said is None else said.token_logprobs[start:tokens]
    scores = [logprob for logprob in found if logprob is not None]
    if len(scores) != tokens - start:
        raise GenerationError(f"the server gave {len(scores)} log-probabilities of {tokens - start} tokens of a prompt")
    return scores


def spread(answer: ServerAnswer) -> float:
    """Return by how much the log-probabilities of the likeliest first tokens differ; 0 where none are told."""
    said = answer.choices[0].logprobs if answer.choices else None
    if said is None or not said.top_logprobs or not said.top_logprobs[0]:
        return 0.0
    # The one that was drawn is told besides, and is the last unless it is among them.
    likeliest = sorted(said.top_logprobs[0].values(), reverse=True)[:TOP]
    return likeliest[0] - likeliest[-1]


def load_of(text: str, metrics: Sequence[str], version: int) -> EngineLoad | None:
    """Return the load that a server's metrics tell, in Prometheus' text form; None where one of them is missing.

    Args:
        text: Of ``/metrics``.
        metrics: Their names, in the order of ``EngineLoad``.
        version: That is served.
    """
    found = dict.fromkeys(metrics, -1.0)
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in found:
            found[name] = max(found[name], 0.0) + _number(line.rpartition(" ")[2])
    if not metrics or min(found.values()) < 0:
        return None
    usage, running, waiting, preempted = found.values()
    return EngineLoad(usage, int(running), int(waiting), int(preempted), version)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise GenerationError(f"a metric has the value {text[:100]!r}")
    return value


def _drawn(choice: AnsweredChoice) -> tuple[list[int], list[float]]:
    """Return the tokens of a choice, and the log-probability of each."""
    if choice.token_ids is None:
        raise GenerationError("the server gave text and no token ids, though return_token_ids was asked for")
    found: Iterable[float | None] = [] if choice.logprobs is None else choice.logprobs.token_logprobs
    logprobs = [logprob for logprob in found if logprob is not None]
    if len(logprobs) != len(choice.token_ids):
        raise GenerationError(f"the server gave {len(logprobs)} logprobs for {len(choice.token_ids)} drawn tokens")
    return list(choice.token_ids), logprobs
