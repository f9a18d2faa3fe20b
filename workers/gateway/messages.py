"""``/v1/messages``: Anthropic's."""

from collections.abc import Iterable
from typing import Any

from aiohttp import web

from trinity_bus.chat.anthropic import MessageShape, read_messages_request
from trinity_bus.chat.renderer import DrawnTurn
from trinity_bus.errors import TrinityError
from workers.gateway.request_gate import BODY, json_response, status_of
from workers.gateway.request_run import Events, RequestContext


class Anthropic:
    def __init__(self, context: RequestContext) -> None:
        self._context = context

    async def messages(self, request: web.Request) -> web.StreamResponse:
        asked, request_run, prompt = await self._context.opened(request, "msg_", read_messages_request)
        stop = asked.sampling.stop or ()
        sampling = asked.drawn_after(prompt.token_ids, self._context.tokenizer)
        shape = MessageShape(request_run.id, self._context.model, len(prompt.token_ids), thinking=asked.shows_reasoning)
        if not asked.stream:
            (said,) = request_run.said(prompt, sampling, await request_run.draw(prompt.token_ids, sampling, 1))
            return json_response(shape.body(said))
        speech = request_run.session.speech(prompt, stop)
        events = Events(request, _failed, name=lambda event: str(event["type"]))

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

        drawings = await request_run.stream(prompt.token_ids, sampling, 1, events=events, hear=hear)
        if drawings is None:
            return await events.send([])
        begun = events.begun
        (said,) = request_run.said(prompt, sampling, drawings)
        ends = [*(() if begun else [shape.start()]), *shape.last(said, speech.end(said.content))]
        return await events.send(ends)

    async def count_tokens(self, request: web.Request) -> web.StreamResponse:
        body = request.pop(BODY)
        asked = read_messages_request(body, self._context.sampling)
        self._context.check_model(asked.model)
        prompt = await self._context.written(
            len(body), self._context.sessions.renderer.prompt, asked.messages, asked.tools
        )
        return json_response({"input_tokens": len(prompt)})


def _failed(error: TrinityError) -> dict[str, Any]:
    return {"type": "error", "error": {"type": status_of(error)[1], "message": str(error)}}
