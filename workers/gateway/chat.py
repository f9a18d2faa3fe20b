"""``/v1/chat/completions`` and ``/v1/completions``: OpenAI's; ``/v1/messages``: Anthropic's."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from aiohttp import web

from trinity_bus.chat.anthropic import MessageShape, read_messages_request
from trinity_bus.chat.messages import Completion
from trinity_bus.chat.openai import (
    ChatShape,
    CompletionShape,
    error_body,
    read_completion_request,
    read_request,
    text_of_completion,
    token_texts,
)
from trinity_bus.chat.rendering import DrawnTurn, Speech
from trinity_bus.errors import TrinityError
from workers.gateway.request_gate import BODY, PLACE, json_response, status_of
from workers.gateway.request_run import Events, RequestContext

_DONE: Final = b"[DONE]"


class ChatApis:
    """Each takes a request, draws, and answers in the shape of its API: in one piece, or as events."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context

    async def chat(self, request: web.Request) -> web.StreamResponse:
        context = self._context
        asked, run, prompt = await context.opened(request, "chatcmpl-", read_request)
        sampling = asked.drawn_after(prompt.token_ids, context.tokenizer)
        shape = ChatShape(run.id, run.created, context.model, len(prompt.token_ids))

        def logprobs(drawing: Completion) -> list[tuple[str, float]] | None:
            return token_texts(context.tokenizer, drawing.token_ids, drawing.logprobs) if asked.logprobs else None

        if not asked.stream:
            drawings = await context.explorers.draw(prompt.token_ids, sampling, asked.n)
            said = run.said(prompt, sampling, drawings)
            return json_response(
                shape.body([(one, logprobs(drawn)) for one, drawn in zip(said, drawings, strict=True)])
            )
        speeches = [run.session.speech(prompt, asked.sampling.stop or ()) for _ in range(asked.n)]
        begun: set[int] = set()

        def first(index: int) -> Iterable[Any]:
            if index not in begun:
                begun.add(index)
                yield shape.first(index)

        def hear(index: int, token_ids: list[int]) -> Iterable[Any]:
            yield from first(index)
            if text := speeches[index].hear(token_ids):
                yield shape.more(index, text)

        def ended(drawings: list[Completion]) -> Iterable[Any]:
            said = run.said(prompt, sampling, drawings)
            for i, (one, drawing) in enumerate(zip(said, drawings, strict=True)):
                yield from first(i)
                yield from shape.last(i, one, speeches[i].end(one.content), logprobs(drawing))
            if asked.include_usage:
                yield shape.usage(_drawn(drawings))
            yield _DONE

        events = Events(request, _failed_as_openai)
        return await run.stream(prompt.token_ids, sampling, asked.n, events=events, hear=hear, ended=ended)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body, context = request.pop(BODY), self._context
        asked = await context.written(len(body), read_completion_request, body, context.sampling, context.tokenizer)
        del body
        request[PLACE].close()
        context.check_model(asked.model)
        run = context.begin(request, "cmpl-")
        shape = CompletionShape(run.id, run.created, context.model, len(asked.prompt))
        stop = asked.sampling.stop or ()

        def texts(drawings: Sequence[Completion]) -> list[str]:
            run.completed(asked.prompt, drawings)
            return [text_of_completion(context.tokenizer, one.token_ids, stop) for one in drawings]

        if not asked.stream:
            drawings = await context.explorers.draw(asked.prompt, asked.sampling, asked.n)
            choices = [(text, one.finish_reason) for text, one in zip(texts(drawings), drawings, strict=True)]
            return json_response(shape.body(choices, _drawn(drawings)))
        speeches = [Speech(context.tokenizer, stop=stop, plain=True) for _ in range(asked.n)]

        def hear(index: int, token_ids: list[int]) -> Iterable[Any]:
            if text := speeches[index].hear(token_ids):
                yield shape.chunk(index, text)

        def ended(drawings: list[Completion]) -> Iterable[Any]:
            for i, (text, one) in enumerate(zip(texts(drawings), drawings, strict=True)):
                yield shape.chunk(i, speeches[i].end(text), one.finish_reason)
            if asked.include_usage:
                yield shape.usage(_drawn(drawings))
            yield _DONE

        events = Events(request, _failed_as_openai)
        return await run.stream(asked.prompt, asked.sampling, asked.n, events=events, hear=hear, ended=ended)

    async def messages(self, request: web.Request) -> web.StreamResponse:
        context = self._context
        asked, run, prompt = await context.opened(request, "msg_", read_messages_request)
        sampling = asked.drawn_after(prompt.token_ids, context.tokenizer)
        shape = MessageShape(run.id, context.model, len(prompt.token_ids), thinking=asked.shows_reasoning)
        if not asked.stream:
            (said,) = run.said(prompt, sampling, await context.explorers.draw(prompt.token_ids, sampling, 1))
            return json_response(shape.body(said))
        speech = run.session.speech(prompt, asked.sampling.stop or ())
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
            (said,) = run.said(prompt, sampling, drawings)
            if not events.begun:
                yield shape.start()
            yield from shape.last(said, speech.end(said.content))

        return await run.stream(prompt.token_ids, sampling, 1, events=events, hear=hear, ended=ended)

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
