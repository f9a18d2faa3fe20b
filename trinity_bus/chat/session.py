"""What is prompted with next, and which samples come of it. No client, no clock, no task: a caller asks the engine.

A session is what one agent says to a model: one conversation, or several with common beginnings::

    prompt(messages) --> Prompt --engine--> add(prompt, completion) --> ModelReply --> the caller's next messages

    messages are                                               the prompt is            and its answer
    the first ever                                             all of them, written     begins the first sample
    what was said last, and more                               the same tokens, and     is added to that sample
                                                               what is new, written
    what was said earlier and was answered since, and more;    likewise                 begins a sample (``branches``)
    or a prompt that has been answered already, or what is
    answered from another softmax (its temperature, say)
    anything else: the history, or the tools, were changed     all of them, written     begins a sample (``rewrites``)

So each drawn token is in one sample, once, and before it stand exactly the tokens that it was drawn after. In a sample
that has begun as a branch, what was drawn before is part of the prompt: it is trained on where it was drawn.

Which case it is is decided when the answer is there: two requests that continue the same turn at once are a
continuation and a branch. A prompt that is never answered leaves nothing behind. Answers that somebody else gave are
taken in where what was drawn is known (``recall``).

Failures: messages that cannot be written are a ``ChatError``, and change nothing.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from schemas.experience import Rollout, UInt8, VersionSpan
from schemas.groups.kept import extended
from schemas.sampling import Sampling
from trinity_bus.chat.formats import ParsedCall
from trinity_bus.chat.messages import ChatError, ChatMessage, Completion, Digests
from trinity_bus.chat.rendering import DrawnTurn, Renderer, Speech, TemplateOptions, Tools


@dataclass(slots=True)
class TokenSample:
    """One sample: a prompt, and all that was said since, of which the model's own tokens are trained on."""

    prompt_token_ids: list[int]
    response_token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # [response] 0 where the token was not drawn
    mask: list[bool] = field(default_factory=list)  # [response] True where the token was drawn
    versions: list[VersionSpan] = field(default_factory=list)
    turn_starts: list[int] = field(default_factory=list)  # [turns] where in the response each drawn turn begins
    # [prompt + response - 1, layers, k] the experts that were chosen as each token was first run; None where the engine
    # has not told those of the last turn.
    routes: UInt8 | None = None
    kept: bytearray | None = None  # from which tokens each of the response was drawn: see ``schemas.groups.kept``
    finish_reason: str = "stop"  # of the last turn
    number: int = 0  # which of its session's
    # How it was drawn, all turns from the same softmax: the turn that something altered, if one was. None: nobody said.
    sampling: Sampling | None = None

    def rollout(self, *, reward: float, metrics: Mapping[str, float], run_id: int | None = None) -> Rollout:
        same = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.name != "number"}
        return Rollout(**same, reward=reward, metrics=dict(metrics), run_id=run_id)

    def _add(self, told: Sequence[int], completion: Completion) -> None:
        drawn = list(completion.token_ids)
        self.kept = extended(self.kept, len(self.response_token_ids), None, len(told))
        self.response_token_ids += told
        self.logprobs += [0.0] * len(told)
        self.mask += [False] * len(told)
        start = len(self.response_token_ids)
        self.turn_starts.append(start)
        self.kept = extended(self.kept, start, completion.kept, len(drawn))
        self.response_token_ids += drawn
        self.logprobs += completion.logprobs
        self.mask += [True] * len(drawn)
        for offset, version in completion.versions:
            if not self.versions:
                self.versions.append((0, version))
            elif self.versions[-1][1] != version:
                self.versions.append((start + offset, version))
        self.routes = _continued_routes(self.routes, completion.routes)
        self.finish_reason = completion.finish_reason


def _continued_routes(known: UInt8 | None, told: UInt8 | None) -> UInt8 | None:
    """Return the routes of a sample whose last turn came with those of all tokens before it, too.

    What was noted first is kept: an older version may have run those tokens, and drawn what came after them.
    """
    if known is None or told is None:
        return told
    return np.concatenate([known, told[len(known) :]])


@dataclass(frozen=True, slots=True)
class _Point:
    sample: TokenSample
    turn: int  # how many turns of the sample there are up to here
    start: int
    end: int  # [start, end) of the sample's tokens is the turn
    ended: bool

    def drawn(self) -> DrawnTurn:
        tokens = self.sample.prompt_token_ids + self.sample.response_token_ids
        return DrawnTurn(tokens[: self.start], tokens[self.start : self.end], self.ended)


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: list[int]
    tools: Tools
    renderer: Renderer  # that has written it, and reads its answers
    known: bytes  # what its history is known by
    digests: Digests
    after: _Point | None  # the turn that it continues
    begun: tuple[str, int] = ("", 0)  # of the answer, which its last tokens are: how many

    @property
    def parts(self) -> tuple[list[int], list[int]]:
        """What is said before the answer, and what was begun of that."""
        at = len(self.token_ids) - self.begun[1]
        return self.token_ids[:at], self.token_ids[at:]


@dataclass(frozen=True, slots=True)
class ModelReply:
    content: str
    reasoning: str | None = None
    tool_calls: tuple[ParsedCall, ...] = ()
    flaws: tuple[str, ...] = ()  # tool calls that could not be read, in words for the model
    finish_reason: str = "stop"
    stopped_by: str | None = None  # which of the texts has ended it that were to do so
    tokens: int = 0
    reasoning_tokens: int = 0  # in its reasoning, where they were counted
    sample: int = 0  # in which of the session's samples it is
    turn: int = 0  # which of that sample's turns

    @property
    def message(self) -> dict[str, Any]:
        """As a message of OpenAI's shape, to be sent back in the next request."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for call in self.tool_calls
            ]
        return message


class Session:
    """What one agent says to a model, as samples."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._points: dict[bytes, _Point] = {}
        self._asked: set[bytes] = set()
        self._calls = 0
        self.samples: list[TokenSample] = []
        self.rewrites = 0  # samples that have begun because the history was not what had been said
        self.branches = 0  # samples that have begun at an earlier turn
        self.flaws = 0  # tool calls that could not be read

    @property
    def turns(self) -> int:
        return sum(len(sample.turn_starts) for sample in self.samples)

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "turns": float(self.turns),
            "rewrites": float(self.rewrites),
            "branches": float(self.branches),
            "tool_call_flaws": float(self.flaws),
            "response_tokens": float(sum(sum(sample.mask) for sample in self.samples)),
        }

    def prompt(
        self,
        messages: Sequence[ChatMessage],
        tools: Tools = None,
        options: TemplateOptions | None = None,
        begun: str = "",
    ) -> Prompt:
        """Return what to ask the engine with.

        ``messages`` are the whole conversation, as clients of OpenAI's send it; ``options`` are of the model's chat
        template, for what is new of it; the answer goes on with ``begun``. ChatError: they cannot be written as tokens
        of this model, or make none.
        """
        if not messages:
            raise ChatError("a conversation needs at least one message")
        digests = Digests(tools)
        known = [digests.add(message) for message in messages]
        # Calls of a history that was said to another session have the first of the ids.
        self._calls = max(self._calls, sum(len(message.get("tool_calls") or ()) for message in messages))
        renderer = self._renderer.configured(options) if options else self._renderer
        token_ids, after = self._continued(renderer, known, messages, tools)
        if token_ids is None:
            token_ids, after = renderer.prompt(messages, tools), None
        if not token_ids:
            raise ChatError("a conversation without a single token")
        new = renderer.begun(token_ids, begun) if begun else []
        return Prompt([*token_ids, *new], tools, renderer, known[-1], digests, after, (begun, len(new)))

    def misses(self, messages: Sequence[ChatMessage], tools: Tools = None) -> bool:
        """Whether the last answer in a history was not given here: somebody else gave it, or it was rewritten."""
        digests, missed = Digests(tools), False
        for message in messages:
            known = digests.add(message)
            if message.get("role") == "assistant":
                missed = known not in self._points
        return missed

    def recall(
        self,
        messages: Sequence[ChatMessage],
        tools: Tools,
        stop: Sequence[str],
        drawn: Callable[[Sequence[int]], Sequence[Completion]],
        options: TemplateOptions | None = None,
        *,
        sampling: Sampling | None = None,
    ) -> list[tuple[Completion, ModelReply]]:
        """Take the answers of a history that were given elsewhere, up to the first that is not what was drawn there.

        ``stop`` ended answers; ``drawn`` returns what was drawn elsewhere after a prompt, by ``sampling``. Returns what
        was taken, and what it says.
        """
        taken: list[tuple[Completion, ModelReply]] = []
        digests = Digests(tools)
        for count, message in enumerate(messages):
            known = digests.add(message)
            if message.get("role") != "assistant" or known in self._points:
                continue
            if not count:
                break
            prompt = self.prompt(messages[:count], tools, options)
            same = next((one for one in drawn(prompt.token_ids) if self._would_be(prompt, one, stop) == known), None)
            if same is None:
                break
            taken.append((same, self.add(prompt, same, stop, sampling)))
        return taken

    def add(
        self, prompt: Prompt, completion: Completion, stop: Sequence[str] = (), sampling: Sampling | None = None
    ) -> ModelReply:
        """Take an answer to a prompt: once for each response that was asked for.

        What is said ends before texts of ``stop``. ``sampling``: how it was drawn, where each sample is to tell it.
        """
        sample, told = self._sample(prompt, sampling)
        if sampling is not None and (sample.sampling is None or sampling.altered_by):
            sample.sampling = sampling
        sample._add(told, completion)  # noqa: SLF001 (its maker)
        end = len(sample.prompt_token_ids) + len(sample.response_token_ids)
        point = _Point(
            sample, len(sample.turn_starts), end - len(completion.token_ids), end, completion.finish_reason == "stop"
        )
        said = self._said(prompt, completion, stop, sample=sample.number, turn=point.turn - 1)
        self.flaws += len(said.flaws)
        self._asked.add(prompt.known)
        self._points[_known(prompt, said)] = point
        return said

    def add_alone(self, prompt: Sequence[int], completion: Completion) -> TokenSample:
        """Take a completion of a prompt that is no conversation: a sample of its own, which nothing continues."""
        self.samples.append(TokenSample(list(prompt), number=len(self.samples)))
        self.samples[-1]._add([], completion)  # noqa: SLF001 (its maker)
        return self.samples[-1]

    def _would_be(self, prompt: Prompt, completion: Completion, stop: Sequence[str]) -> bytes:
        calls = self._calls
        said = self._said(prompt, completion, stop, sample=0, turn=0)
        self._calls = calls
        return _known(prompt, said)

    def _continued(
        self, renderer: Renderer, known: Sequence[bytes], messages: Sequence[ChatMessage], tools: Tools
    ) -> tuple[list[int] | None, _Point | None]:
        """Return the prompt after the latest turn that these messages continue."""
        for count in range(len(known), 0, -1):
            point = self._points.get(known[count - 1])
            if point is not None:
                drawn = point.drawn()
                new = renderer.extension(drawn, messages[count:], tools)
                return (None if new is None else [*drawn.prompt, *drawn.token_ids, *new]), point
        return None, None

    def _sample(self, prompt: Prompt, sampling: Sampling | None) -> tuple[TokenSample, list[int]]:
        """Return the sample that an answer belongs to, and what it was told since that sample's last turn."""
        after = prompt.after
        if after is not None and len(after.sample.turn_starts) == after.turn:
            before = after.sample.sampling
            if (before and before.softmax) == (sampling and sampling.softmax):
                return after.sample, prompt.token_ids[after.end :]
        if after is not None or prompt.known in self._asked:
            self.branches += 1
        elif self.samples:
            self.rewrites += 1
        self.samples.append(TokenSample(prompt.token_ids, number=len(self.samples)))
        return self.samples[-1], []

    def speech(self, prompt: Prompt, stop: Sequence[str] = ()) -> Speech:
        before, begun = prompt.parts
        speech = prompt.renderer.speech(before, stop, prompt.tools)
        speech.begin(begun)
        return speech

    def _said(
        self, prompt: Prompt, completion: Completion, stop: Sequence[str], *, sample: int, turn: int
    ) -> ModelReply:
        before, begun = prompt.parts
        drawn = DrawnTurn(before, [*begun, *completion.token_ids], completion.finish_reason == "stop")
        read = prompt.renderer.read(drawn, prompt.tools)
        content = read.content
        if begun:
            # As it reads: reasoning that it has is no part of that.
            own = prompt.renderer.read(DrawnTurn(before, begun, ended=False), prompt.tools).content
            content = content.lstrip().removeprefix(own.lstrip())
        found = [(at, text) for text in stop if (at := content.find(text)) >= 0]
        stopped_by = next((text for text in stop if text in (read.reasoning or "")), None)
        if found:
            at, stopped_by = min(found)
            content = content[:at]
        first, self._calls = self._calls, self._calls + len(read.calls)
        calls = tuple(
            dataclasses.replace(call, id=f"call{number:05d}") for number, call in enumerate(read.calls, first)
        )
        return ModelReply(
            content=content,
            reasoning=read.reasoning,
            tool_calls=calls,
            flaws=tuple(read.flaws),
            finish_reason=completion.finish_reason,
            stopped_by=stopped_by,
            tokens=len(completion.token_ids),
            sample=sample,
            turn=turn,
        )


def _known(prompt: Prompt, said: ModelReply) -> bytes:
    return prompt.digests.with_one_more({**said.message, "content": prompt.begun[0] + said.content})
