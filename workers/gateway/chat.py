"""``/v1/chat/completions``, ``/v1/responses`` and ``/v1/completions``: OpenAI's; ``/v1/messages``: Anthropic's.

A response is stored as it was sent, and can be had again and deleted by its id; so can the items that it was made from.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from aiohttp import web

from schemas.sampling import Sampling
from trinity_bus.chat.anthropic import MessageShape, read_messages_request
from trinity_bus.chat.encoding import encoder_of
from trinity_bus.chat.messages import Completion, Tokenizer
from trinity_bus.chat.openai import (
    ChatRequest,
    ChatShape,
    Choices,
    CompletionShape,
    ConversationShape,
    model_body,
    models_body,
    read_completion_request,
    read_fields,
    read_request,
    text_of_completion,
    token_texts,
)
from trinity_bus.chat.rendering import DrawnTurn, Speech
from trinity_bus.chat.responses import ResponseShape, input_items, read_responses_request
from trinity_bus.chat.session import ModelReply, Prompt, Session
from trinity_bus.gateway.sessions import UnknownAnswerError
from workers.gateway.request_gate import BODY, OWNER, PLACE, json_response
from workers.gateway.request_run import RequestContext, RequestRun


@dataclass(frozen=True, slots=True)
class ConversationApi:
    kind: str  # how the ids of its answers begin
    read: Callable[[bytes, Sampling], ChatRequest]
    shape: Callable[[str, int, str, int, Any], ConversationShape]


APIS: Final[Mapping[str, ConversationApi]] = {
    "/v1/chat/completions": ConversationApi("chatcmpl-", read_request, ChatShape),
    "/v1/responses": ConversationApi("resp_", read_responses_request, ResponseShape),
    "/v1/messages": ConversationApi("msg_", read_messages_request, MessageShape),
}


@dataclass(frozen=True, slots=True)
class _Answer:
    context: RequestContext
    asked: ChatRequest
    run: RequestRun
    prompt: Prompt
    sampling: Sampling
    shape: ConversationShape

    def body(self, drawings: Sequence[Completion]) -> Any:
        said = self.run.said(self.prompt, self.sampling, drawings)
        body = self.shape.body(self._choices(said, drawings))
        self.run.answered(self.prompt, self.sampling, drawings, said, body)
        return body

    def _choices(self, said: Sequence[ModelReply], drawings: Sequence[Completion]) -> Choices:
        tokenizer = self.context.tokenizer
        if self.asked.shows_reasoning:
            said = [replace(one, reasoning_tokens=_tokens_in(tokenizer, one.reasoning)) for one in said]
        if not self.asked.logprobs:
            return [(one, None) for one in said]
        drawn = zip(said, drawings, strict=True)
        return [(one, token_texts(tokenizer, of.token_ids, of.logprobs)) for one, of in drawn]

    async def stream(self, request: web.Request) -> web.StreamResponse:
        prompt, shape, n = self.prompt, self.shape, self.asked.n
        speeches = [self.run.session.speech(prompt, self.asked.sampling.stop or ()) for _ in range(n)]
        so_far: list[list[int]] = [[] for _ in range(n)]
        begun: set[int] = set()

        def begin(index: int) -> Iterable[Any]:
            if index not in begun:
                begun.add(index)
                yield from shape.start(index)

        def hear(index: int, token_ids: list[int]) -> Iterable[Any]:
            so_far[index] += token_ids

            def reasoning() -> str | None:
                turn = DrawnTurn(prompt.token_ids, so_far[index], ended=False)
                return prompt.renderer.read(turn, self.asked.tools).reasoning

            yield from begin(index)
            if text := speeches[index].hear(token_ids):
                yield from shape.more(index, text, reasoning)

        def ended(drawings: list[Completion]) -> Iterable[Any]:
            replies, events = self.run.said(prompt, self.sampling, drawings), list[Any]()
            for i, (said, tokens) in enumerate(self._choices(replies, drawings)):
                events += begin(i)
                events += shape.last(i, said, speeches[i].end(said.content), tokens)
            # The last event of a response has it whole.
            self.run.answered(prompt, self.sampling, drawings, replies, events[-1].get("response"))
            return [*events, *shape.end(_drawn(drawings))]

        return await self.run.stream(request, shape, prompt.token_ids, self.sampling, n, hear=hear, ended=ended)


class ChatApis:
    """Each takes a request, draws, and answers in the shape of its API: in one piece, or as events."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context

    async def conversation(self, api: ConversationApi, request: web.Request) -> web.StreamResponse:
        context = self._context
        asked, run, prompt = await context.opened(request, api.kind, api.read)
        sampling = asked.drawn_after(prompt.token_ids, context.tokenizer)
        shape = api.shape(run.id, run.created, context.model, len(prompt.token_ids), asked)
        answer = _Answer(context, asked, run, prompt, sampling, shape)
        if asked.stream:
            return await answer.stream(request)
        return json_response(answer.body(await run.draw(prompt.token_ids, sampling, asked.n)))

    async def models(self, request: web.Request) -> web.StreamResponse:
        model = self._context.model
        if (asked := request.match_info.get("model")) is None:
            return json_response(models_body(model))
        self._context.check_model(asked)
        return json_response(model_body(model))

    async def stored(self, request: web.Request) -> web.StreamResponse:
        # Nothing of what its client may ask of it beside can be had.
        read_fields(dict(request.query), frozenset(), {"stream": ("false",)}, "query")
        _, held = self._context.sessions.stored(*_named(request))
        if held.whole is None:
            raise UnknownAnswerError(
                "this response can be continued, but its conversation has no room to hold it whole"
            )
        return web.Response(body=held.whole, content_type="application/json")

    async def input_items(self, request: web.Request) -> web.StreamResponse:
        *messages, _ = self._context.sessions.history(*_named(request))
        size, answer_id = sum(map(len, messages)), request.match_info["response"]
        return json_response(await self._context.written(size, input_items, messages, answer_id, dict(request.query)))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        self._context.sessions.delete(*_named(request))
        return json_response({"id": request.match_info["response"], "object": "response", "deleted": True})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body, context = request.pop(BODY), self._context
        asked = await context.written(len(body), read_completion_request, body, context.sampling, context.tokenizer)
        del body
        request[PLACE].close()
        context.check_model(asked.model)
        run = context.begin(request, "cmpl-")
        prompt, sampling = asked.prompt, asked.sampling
        shape = CompletionShape(run.id, run.created, context.model, len(prompt), replace(asked, prompt=[]))
        stop, ends = sampling.stop or (), encoder_of(context.tokenizer).ends

        def texts(drawings: Sequence[Completion]) -> list[str]:
            run.completed(prompt, drawings)
            return [text_of_completion(context.tokenizer, one.token_ids, stop) for one in drawings]

        if not asked.stream:
            drawings = await run.draw(prompt, sampling, asked.n)
            choices = [(text, one.finish_reason) for text, one in zip(texts(drawings), drawings, strict=True)]
            return json_response(shape.body(choices, _drawn(drawings)))
        speeches = [Speech(context.tokenizer, ends, stop=stop, plain=True) for _ in range(asked.n)]

        def hear(index: int, token_ids: list[int]) -> Iterable[Any]:
            if text := speeches[index].hear(token_ids):
                yield shape.chunk(index, text)

        def ended(drawings: list[Completion]) -> Iterable[Any]:
            for i, (text, one) in enumerate(zip(texts(drawings), drawings, strict=True)):
                yield shape.chunk(i, speeches[i].end(text), one.finish_reason)
            yield from shape.end(_drawn(drawings))

        return await run.stream(request, shape, prompt, sampling, asked.n, hear=hear, ended=ended)

    async def count_tokens(self, request: web.Request) -> web.StreamResponse:
        body = request.pop(BODY)
        asked = read_messages_request(body, self._context.sampling)
        self._context.check_model(asked.model)
        session = Session(self._context.sessions.renderer)
        given = asked.messages, asked.tools, asked.options, asked.begun
        prompt = await self._context.written(len(body), session.prompt, *given)
        return json_response({"input_tokens": len(prompt.token_ids)})


def _named(request: web.Request) -> tuple[str, str, str | None]:
    return request[OWNER], request.match_info["response"], request.match_info.get("session")


def _tokens_in(tokenizer: Tokenizer, text: str | None) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False)) if text else 0


def _drawn(drawings: Iterable[Completion]) -> int:
    return sum(len(one.token_ids) for one in drawings)
