"""One request's way from its prompt to its answer, whatever shape client and answer have.

::

    prompt --Explorers--> tokens as they come --hear--> events, where it is streamed
                            '--all of them--> the conversation's samples, the id of an answer --> the answer
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
from aiohttp import web
from opentelemetry import trace

from schemas.sampling import Sampling
from schemas.topic import TRACEPARENT
from trinity_bus import awake
from trinity_bus.chat import ChatError, ModelReply, Prompt, Session, Tokenizer
from trinity_bus.chat.messages import Completion
from trinity_bus.chat.openai import ChatRequest, UnknownModelError
from trinity_bus.errors import TrinityError
from trinity_bus.gateway.explorers import Explorers
from trinity_bus.gateway.sessions import Dialogue, Sessions, new_answer_id
from trinity_bus.runtime.http import in_thread
from trinity_bus.telemetry import parent_context
from trinity_bus.telemetry.conventions import (
    GEN_AI_CONVERSATION_ID,
    GEN_AI_PROVIDER_NAME,
    GEN_AI_REQUEST_MODEL,
    PROVIDER,
)
from trinity_bus.telemetry.generative import note_error, note_messages, note_replies, operation_span
from workers.gateway.request_gate import BODY, OWNER, PLACE, Handler
from workers.gateway.turn_finder import MOST_LOOKS, TurnFinder, TurnLog

_SESSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

# Bytes of a request from which on it is made into tokens in a thread: some ten milliseconds.
LARGE: Final = 32 << 10

type Hear = Callable[[int, list[int]], Iterable[Any]]  # returns the events of new tokens of a response
type Ended = Callable[[list[Completion]], Iterable[Any]]  # returns the last events, of whole responses


@dataclass(frozen=True, slots=True)
class RequestContext:
    model: str  # what its clients call it
    tokenizer: Tokenizer
    explorers: Explorers
    sessions: Sessions
    sampling: Sampling  # how all is drawn
    turns: TurnLog
    recall: TurnFinder
    tokens: Counter[str] = field(default_factory=Counter)  # of prompts, and of responses
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while a large one is written
    # Of what clients send and the model says: rewritten histories, branches, tool calls that cannot be read.
    flaws: Counter[str] = field(default_factory=Counter)

    def check_model(self, asked: str) -> None:
        if asked not in ("", self.model):
            raise UnknownModelError(f"the model {asked[:200]!r} is not served here; {self.model!r} is")

    async def written[*A, R](self, size: int, write: Callable[[*A], R], *given: *A) -> R:
        """Return what writes a request of so many bytes as tokens; others go on while a large one is, one at a time."""
        if size < LARGE:
            return write(*given)
        async with self.writing:
            return await in_thread(write, *given)

    def traced(self, operation: str, handler: Handler) -> Handler:
        """Answer each request in a span, in the client's trace where it says which."""
        attributes = {GEN_AI_PROVIDER_NAME: PROVIDER, GEN_AI_REQUEST_MODEL: self.model}

        async def answer(request: web.Request) -> web.StreamResponse:
            with operation_span(operation, self.model, attributes, parent_context(request.headers.get(TRACEPARENT))):
                return await handler(request)

        return answer

    async def opened(
        self, request: web.Request, kind: str, read: Callable[[bytes, Sampling], ChatRequest]
    ) -> tuple[ChatRequest, "RequestRun", Prompt]:
        """Begin to answer a conversation: return what is asked for, its messages aside, and its prompt."""
        body = request.pop(BODY)
        asked = read(body, self.sampling)
        self.check_model(asked.model)
        request_run = self.begin(request, kind)
        prompt = await request_run.prompt(len(body), asked)
        note_messages(trace.get_current_span(), asked.messages)
        request[PLACE].close()
        return replace(asked, messages=()), request_run, prompt

    def begin(self, request: web.Request, kind: str) -> "RequestRun":
        """Begin to answer a request; its id begins with ``kind``."""
        now = time.time()
        answer_id = new_answer_id(kind, now)
        name = request.match_info.get("session")
        if name is not None:
            if not _SESSION.fullmatch(name):
                raise ChatError("a session's name has up to 128 letters, digits and ._:-")
            trace.get_current_span().set_attribute(GEN_AI_CONVERSATION_ID, name)
        conversation = self.sessions.open(
            request[OWNER], answer_id if name is None else name, awake.now(), single=name is None
        )
        return RequestRun(self, answer_id, int(now), conversation, conversation.session)


@dataclass(frozen=True, slots=True)
class RequestRun:
    context: RequestContext
    id: str  # of the answer
    created: int
    conversation: Dialogue
    session: Session  # the conversation's, when the request came

    async def prompt(self, size: int, asked: ChatRequest) -> Prompt:
        """Return what the engine is asked with; what another gateway has answered of it is recalled first."""
        of, context = self.conversation, self.context
        messages, tools, options = asked.messages, asked.tools, asked.options
        if not of.single and of.fruitless < MOST_LOOKS and self.session.misses(messages, tools):
            recalled = await context.recall.into(self.session, of.task_id, asked)
            of.fruitless += recalled == []
            for answer_id, place in recalled or ():
                if answer_id is not None:
                    context.sessions.answered(of, self.session, answer_id, [place])
        return await context.written(size, self.session.prompt, messages, tools, options)

    async def stream(
        self, prompt: Sequence[int], sampling: Sampling, n: int, *, events: "Events", hear: Hear, ended: Ended
    ) -> web.StreamResponse:
        """Draw, and send events as tokens come, and at the end; a failure amid it is the last event."""

        async def on_drawn(index: int, token_ids: list[int]) -> None:
            if new := list(hear(index, token_ids)):
                await events.send(new)

        try:
            drawings = await self.context.explorers.draw(prompt, sampling, n, on_drawn)
        except TrinityError as error:
            if not events.begun:
                raise
            note_error(trace.get_current_span(), error)
            return await events.send([events.failure(error)])
        return await events.send(list(ended(drawings)))

    def said(self, prompt: Prompt, sampling: Sampling, drawings: Sequence[Completion]) -> list[ModelReply]:
        session = self.session
        before = session.rewrites, session.branches
        said = [session.add(prompt, one, sampling.stop or (), sampling) for one in drawings]
        self.context.flaws["rewrites"] += session.rewrites - before[0]
        self.context.flaws["branches"] += session.branches - before[1]
        self.context.flaws["tool_call_flaws"] += sum(len(one.flaws) for one in said)
        reasons = [one.finish_reason for one in said]
        note_replies(trace.get_current_span(), (one.message for one in said), reasons)
        places = [(one.sample, one.turn) for one in said]
        self._note(prompt.token_ids, drawings, places, kept=not sampling.altered_by)
        return said

    def completed(self, prompt: Sequence[int], drawings: Sequence[Completion]) -> None:
        places = [(self.session.add_alone(prompt, one).number, 0) for one in drawings]
        self._note(prompt, drawings, places)

    def _note(
        self,
        prompt: Sequence[int],
        drawings: Sequence[Completion],
        places: Iterable[tuple[int, int]],
        *,
        kept: bool = True,
    ) -> None:
        task_id, number = self.conversation.task_id, len(self.conversation.answers)
        self.context.sessions.answered(self.conversation, self.session, self.id, places)
        # Another gateway could not know that it was drawn otherwise, and would have it trained on.
        if kept:
            alone = self.conversation.single
            self.context.turns.keep(task_id, number, prompt, drawings, answer_id=self.id, alone=alone)
        self.context.tokens["prompt"] += len(prompt)
        self.context.tokens["response"] += sum(len(one.token_ids) for one in drawings)


class Events:
    """Server-sent events of one response, which begins with the first of them. ``failure`` makes that of an error."""

    def __init__(
        self,
        request: web.Request,
        failure: Callable[[TrinityError], Any],
        name: Callable[[Any], str] | None = None,
    ) -> None:
        self._request = request
        self.failure = failure
        self._name = name
        self._response: web.StreamResponse | None = None

    @property
    def begun(self) -> bool:
        return self._response is not None

    async def send(self, events: Iterable[Any]) -> web.StreamResponse:
        if self._response is None:
            headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
            self._response = web.StreamResponse(headers=headers)
            await self._response.prepare(self._request)
        if written := b"".join(map(self._written, events)):
            await self._response.write(written)
        return self._response

    def _written(self, event: Any) -> bytes:
        named = b"" if self._name is None else b"event: %s\n" % self._name(event).encode()
        return b"%sdata: %s\n\n" % (named, event if isinstance(event, bytes) else msgspec.json.encode(event))
