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
from trinity_bus.chat.messages import Completion, canonical
from trinity_bus.chat.openai import AnswerShape, ChatRequest, UnknownModelError
from trinity_bus.errors import TrinityError
from trinity_bus.gateway.explorers import Explorers, OnDrawn
from trinity_bus.gateway.sessions import ConversationFullError, Dialogue, Sessions, Told, new_answer_id
from trinity_bus.runtime.http import in_thread
from trinity_bus.telemetry import parent_context
from trinity_bus.telemetry.conventions import GEN_AI_CONVERSATION_ID
from trinity_bus.telemetry.generative import note_error, note_messages, note_replies, operation_span
from workers.gateway.request_gate import BODY, BY_SESSION_KEY, OWNER, PLACE, Handler, status_of, told
from workers.gateway.turn_finder import MOST_LOOKS, TurnFinder, TurnLog

_SESSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

_DONE: Final = b"[DONE]"

# Bytes of a request from which on it is made into tokens in a thread: some ten milliseconds.
LARGE: Final = 32 << 10
# Bytes that an answer is stored with, from which on its request holds its room until they count as its conversation's.
_MUCH: Final = 1 << 20

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

        async def answer(request: web.Request) -> web.StreamResponse:
            with operation_span(operation, self.model, {}, parent_context(request.headers.get(TRACEPARENT))):
                return await handler(request)

        return answer

    async def opened(
        self, request: web.Request, kind: str, read: Callable[[bytes, Sampling], ChatRequest]
    ) -> tuple[ChatRequest, "RequestRun", Prompt]:
        """Begin to answer a conversation: return what is asked for, its messages aside, and its prompt."""
        body = request.pop(BODY)
        asked = read(body, self.sampling)
        self.check_model(asked.model)
        request_run = self.begin(request, kind, asked)
        prompt = await request_run.prompt(len(body), asked)
        note_messages(trace.get_current_span(), [*asked.opening, *asked.messages])
        if request_run.stored is None or request_run.stored.size < _MUCH:
            request[PLACE].close()
        return replace(asked, messages=(), opening=()), request_run, prompt

    def begin(self, request: web.Request, kind: str, asked: ChatRequest | None = None) -> "RequestRun":
        """Begin to answer a request, ``asked`` if it is one of a conversation; its id begins with ``kind``."""
        now, at = time.time(), awake.now()
        answer_id = new_answer_id(kind, now)
        owner, name = request[OWNER], request.match_info.get("session")
        if name is not None:
            if not _SESSION.fullmatch(name):
                raise ChatError("a session's name has up to 128 letters, digits and ._:-")
            trace.get_current_span().set_attribute(GEN_AI_CONVERSATION_ID, name)
        history: Sequence[bytes] = ()
        if asked is None or asked.previous is None:
            conversation = self.sessions.open(owner, name or answer_id, at, single=name is None)
        else:
            conversation, history = self.sessions.continued(owner, asked.previous, name, at)
        stored = Told(asked.previous, canonical(asked.messages)) if asked is not None and asked.stored else None
        by_key = request[BY_SESSION_KEY]
        request_run = RequestRun(self, answer_id, int(now), conversation, conversation.session, history, stored, by_key)
        request_run.refuse_rewarded()
        return request_run


@dataclass(frozen=True, slots=True)
class RequestRun:
    context: RequestContext
    id: str  # of the answer
    created: int
    conversation: Dialogue
    session: Session  # the conversation's, when the request came
    history: Sequence[bytes] = ()  # JSON of the messages that it continues, where it names the answer after them
    stored: Told | None = None  # what its answer is continued with, by its id
    by_session_key: bool = False

    def refuse_rewarded(self) -> None:
        """Let no agent add to what was judged already: its key is refused once its session has a reward."""
        if self.by_session_key and self.conversation.rewards:
            raise ConversationFullError(f"session {self.conversation.name!r} has its reward: its key adds no more")

    async def draw(
        self, prompt: Sequence[int], sampling: Sampling, n: int, on_drawn: OnDrawn | None = None
    ) -> list[Completion]:
        drawings = await self.context.explorers.draw(prompt, sampling, n, on_drawn)
        # The reward may have come while it was drawn.
        self.refuse_rewarded()
        return drawings

    async def prompt(self, size: int, asked: ChatRequest) -> Prompt:
        """Return what the engine is asked with; what another gateway has answered of it is recalled first."""
        of, context = self.conversation, self.context
        whole = replace(asked, messages=[*asked.opening, *asked.messages])
        looks = not of.single and not self.history and of.fruitless < MOST_LOOKS
        if looks and self.session.misses(whole.messages, whole.tools):
            recalled = await context.recall.into(self.session, of.task_id, whole, of.sampling)
            of.fruitless += recalled == []
            for answer_id, place in recalled or ():
                if answer_id is not None:
                    context.sessions.answered(of, self.session, answer_id, [place])
        return await context.written(size + sum(map(len, self.history)), self._prompt, asked)

    def _prompt(self, asked: ChatRequest) -> Prompt:
        before = [message for messages in self.history for message in msgspec.json.decode(messages)]
        messages = [*asked.opening, *before, *asked.messages]
        return self.session.prompt(messages, asked.tools, asked.options, asked.begun)

    async def stream(
        self,
        request: web.Request,
        shape: AnswerShape,
        prompt: Sequence[int],
        sampling: Sampling,
        n: int,
        *,
        hear: Hear,
        ended: Ended,
    ) -> web.StreamResponse:
        """Draw, and send events as tokens come, and at the end; the first begins the response.

        A failure amid it is the last event.
        """
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})

        async def send(events: Iterable[Any]) -> None:
            if not response.prepared:
                await response.prepare(request)
            if written := b"".join(_event(event, named=shape.named) for event in events):
                await response.write(written)

        async def on_drawn(index: int, token_ids: list[int]) -> None:
            if new := list(hear(index, token_ids)):
                await send(new)

        try:
            drawings = await self.draw(prompt, sampling, n, on_drawn)
        except TrinityError as error:
            if not response.prepared:
                raise
            note_error(trace.get_current_span(), error)
            await send([shape.failed(told(error), status_of(error)[1])])
        else:
            await send([*ended(drawings), *(() if shape.named else (_DONE,))])
        return response

    def said(self, prompt: Prompt, sampling: Sampling, drawings: Sequence[Completion]) -> list[ModelReply]:
        """Add what was drawn to the conversation, and return it; ``answered`` notes it under its id."""
        session = self.session
        before = session.rewrites, session.branches
        said = [session.add(prompt, one, sampling.stop or (), sampling) for one in drawings]
        self.context.flaws["rewrites"] += session.rewrites - before[0]
        self.context.flaws["branches"] += session.branches - before[1]
        self.context.flaws["tool_call_flaws"] += sum(len(one.flaws) for one in said)
        reasons = [one.finish_reason for one in said]
        note_replies(trace.get_current_span(), (one.message for one in said), reasons)
        return said

    def answered(
        self,
        prompt: Prompt,
        sampling: Sampling,
        drawings: Sequence[Completion],
        said: Sequence[ModelReply],
        whole: Any,
    ) -> None:
        """Note what was said, which is ``whole`` as the client gets it where that may be stored."""
        places = [(one.sample, one.turn) for one in said]
        logged = not sampling.altered_by and sampling.softmax == self.context.sampling.softmax
        stored = self.stored and replace(
            self.stored, answer=canonical([one.message for one in said]), whole=msgspec.json.encode(whole)
        )
        self._note(prompt.token_ids, drawings, places, stored, logged=logged)

    def completed(self, prompt: Sequence[int], drawings: Sequence[Completion]) -> None:
        places = [(self.session.add_alone(prompt, one).number, 0) for one in drawings]
        self._note(prompt, drawings, places)

    def _note(
        self,
        prompt: Sequence[int],
        drawings: Sequence[Completion],
        places: Iterable[tuple[int, int]],
        stored: Told | None = None,
        *,
        logged: bool = True,
    ) -> None:
        task_id, number = self.conversation.task_id, len(self.conversation.answers)
        self.context.sessions.answered(self.conversation, self.session, self.id, places, stored)
        # Another gateway could not know that it was drawn otherwise, and would have it trained on.
        if logged:
            alone = self.conversation.single and not number
            self.context.turns.keep(task_id, number, prompt, drawings, answer_id=self.id, alone=alone)
        self.context.tokens["prompt"] += len(prompt)
        self.context.tokens["response"] += sum(len(one.token_ids) for one in drawings)


def _event(event: Any, *, named: bool) -> bytes:
    """Return a server-sent event; ``_DONE`` is one as it stands."""
    name = b"event: %s\n" % event["type"].encode() if named else b""
    return b"%sdata: %s\n\n" % (name, event if isinstance(event, bytes) else msgspec.json.encode(event))
