"""``/v1/chat/completions`` and ``/v1/completions``: OpenAI's; ``/v1/messages``: Anthropic's."""

from collections.abc import Iterable
from typing import Any, Final

from aiohttp import web

from trinity_bus.chat.anthropic import MessageShape, read_messages_request
from trinity_bus.chat.completions import (
    CompletionRequest,
    CompletionShape,
    read_completion_request,
    text_of_completion,
)
from trinity_bus.chat.messages import Completion
from trinity_bus.chat.openai import ChatAnswer, ChatRequest, ChatStream, error_body, read_request, token_texts
from trinity_bus.chat.renderer import DrawnTurn
from trinity_bus.chat.session import Prompt
from trinity_bus.chat.speech import Speech
from trinity_bus.errors import TrinityError
from workers.gateway.request_gate import BODY, PLACE, json_response, status_of
from workers.gateway.request_run import Events, RequestContext, RequestRun

_DONE: Final = b"[DONE]"


class OpenAI:
    def __init__(self, context: RequestContext) -> None:
        self._context = context

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked, request_run, prompt = await self._context.opened(request, "chatcmpl-", read_request)
        if asked.stream:
            return await self._stream_chat(request, request_run, asked, prompt)
        sampling = asked.drawn_after(prompt.token_ids, self._context.tokenizer)
        drawings = await self._context.explorers.draw(prompt.token_ids, sampling, asked.n)
        said = request_run.said(prompt, sampling, drawings)
        choices = [(one, self._logprobs(asked, drawing)) for one, drawing in zip(said, drawings, strict=True)]
        answer = ChatAnswer(request_run.id, request_run.created, self._context.model, len(prompt.token_ids), choices)
        return json_response(answer.body())

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body, context = request.pop(BODY), self._context
        asked = await context.written(len(body), read_completion_request, body, context.sampling, context.tokenizer)
        del body
        request[PLACE].close()
        self._context.check_model(asked.model)
        request_run = self._context.begin(request, "cmpl-")
        shape = CompletionShape(request_run.id, request_run.created, self._context.model, len(asked.prompt))
        if asked.stream:
            return await self._stream_completions(request, request_run, asked, shape)
        drawings = await self._context.explorers.draw(asked.prompt, asked.sampling, asked.n)
        request_run.completed(asked.prompt, drawings)
        choices = [(self._text(asked, one), one.finish_reason) for one in drawings]
        return json_response(shape.body(choices, _drawn(drawings)))

    async def _stream_chat(
        self, request: web.Request, request_run: RequestRun, asked: ChatRequest, prompt: Prompt
    ) -> web.StreamResponse:
        stop = asked.sampling.stop or ()
        stream = ChatStream(request_run.id, request_run.created, self._context.model)
        speeches = [request_run.session.speech(prompt, stop) for _ in range(asked.n)]
        begun: set[int] = set()

        def first(index: int) -> Iterable[Any]:
            if index not in begun:
                begun.add(index)
                yield stream.first(index)

        def hear(index: int, token_ids: list[int]) -> Iterable[Any]:
            yield from first(index)
            if text := speeches[index].hear(token_ids):
                yield stream.more(index, text)

        def ended(drawings: list[Completion]) -> Iterable[Any]:
            said = request_run.said(prompt, sampling, drawings)
            for i, (one, drawing) in enumerate(zip(said, drawings, strict=True)):
                yield from first(i)
                yield from stream.last(i, one, speeches[i].end(one.content), self._logprobs(asked, drawing))
            if asked.include_usage:
                yield stream.usage(len(prompt.token_ids), _drawn(drawings))
            yield _DONE

        events = Events(request, _failed_as_openai)
        sampling = asked.drawn_after(prompt.token_ids, self._context.tokenizer)
        return await request_run.stream(prompt.token_ids, sampling, asked.n, events=events, hear=hear, ended=ended)

    async def _stream_completions(
        self, request: web.Request, request_run: RequestRun, asked: CompletionRequest, shape: CompletionShape
    ) -> web.StreamResponse:
        stop = asked.sampling.stop or ()
        speeches = [Speech(self._context.tokenizer, stop=stop, plain=True) for _ in range(asked.n)]

        def hear(index: int, token_ids: list[int]) -> Iterable[Any]:
            if text := speeches[index].hear(token_ids):
                yield shape.chunk(index, text)

        def ended(drawings: list[Completion]) -> Iterable[Any]:
            request_run.completed(asked.prompt, drawings)
            for i, one in enumerate(drawings):
                yield shape.chunk(i, speeches[i].end(self._text(asked, one)), one.finish_reason)
            if asked.include_usage:
                yield shape.usage(_drawn(drawings))
            yield _DONE

        events = Events(request, _failed_as_openai)
        return await request_run.stream(asked.prompt, asked.sampling, asked.n, events=events, hear=hear, ended=ended)

    def _text(self, asked: CompletionRequest, drawing: Completion) -> str:
        return text_of_completion(self._context.tokenizer, drawing.token_ids, asked.sampling.stop or ())

    def _logprobs(self, asked: ChatRequest, drawing: Completion) -> list[tuple[str, float]] | None:
        if not asked.logprobs:
            return None
        return token_texts(self._context.tokenizer, drawing.token_ids, drawing.logprobs)


class Anthropic:
    def __init__(self, context: RequestContext) -> None:
        self._context = context

    async def messages(self, request: web.Request) -> web.StreamResponse:
        asked, request_run, prompt = await self._context.opened(request, "msg_", read_messages_request)
        stop = asked.sampling.stop or ()
        sampling = asked.drawn_after(prompt.token_ids, self._context.tokenizer)
        shape = MessageShape(request_run.id, self._context.model, len(prompt.token_ids), thinking=asked.shows_reasoning)
        if not asked.stream:
            (said,) = request_run.said(
                prompt, sampling, await self._context.explorers.draw(prompt.token_ids, sampling, 1)
            )
            return json_response(shape.body(said))
        speech = request_run.session.speech(prompt, stop)
        events = Events(request, _failed_as_anthropic, name=lambda event: str(event["type"]))

        drawn: list[int] = []

        def hear(index: int, token_ids: list[int]) -> Iterable[Any]:
            del index
            drawn.extend(token_ids)
            if not events.begun:
                yield shape.start()
            if text := speech.hear(token_ids):
                if shape.silent:
                    # What is shown comes after the reasoning, which is whole by now.
                    so_far = prompt.renderer.read(DrawnTurn(prompt.token_ids, drawn, ended=False), asked.tools)
                    yield from shape.begin(so_far.reasoning)
                yield shape.more(text)

        def ended(drawings: list[Completion]) -> Iterable[Any]:
            (said,) = request_run.said(prompt, sampling, drawings)
            if not events.begun:
                yield shape.start()
            yield from shape.last(said, speech.end(said.content))

        return await request_run.stream(prompt.token_ids, sampling, 1, events=events, hear=hear, ended=ended)

    async def count_tokens(self, request: web.Request) -> web.StreamResponse:
        body = request.pop(BODY)
        asked = read_messages_request(body, self._context.sampling)
        self._context.check_model(asked.model)
        prompt = await self._context.written(
            len(body), self._context.sessions.renderer.prompt, asked.messages, asked.tools
        )
        return json_response({"input_tokens": len(prompt)})


def _drawn(drawings: Iterable[Completion]) -> int:
    return sum(len(one.token_ids) for one in drawings)


def _failed_as_openai(error: TrinityError) -> dict[str, Any]:
    return error_body(str(error), status_of(error)[1])


def _failed_as_anthropic(error: TrinityError) -> dict[str, Any]:
    return {"type": "error", "error": {"type": status_of(error)[1], "message": str(error)}}
