"""A renderer for the models that the package ``renderers`` knows: written by hand, and tested against their templates.

It is told to keep reasoning in earlier turns, as it was drawn; what it would take back all the same begins a sample of
its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from renderers import create_renderer
from renderers.base import MODEL_RENDERER_MAP, ToolCallParseStatus
from renderers.configs import AutoRendererConfig, config_from_name

from trinity_bus.chat.encoding import Encoder, encoder_of
from trinity_bus.chat.formats import Read
from trinity_bus.chat.messages import ChatError, ChatMessage, Tokenizer, for_template
from trinity_bus.chat.rendering import OPENING, DrawnTurn, Speech, TemplateOptions, Tools, after


def knows(model: str) -> bool:
    return model in MODEL_RENDERER_MAP


class PackagedRenderer:
    """Writes messages with the package's renderer for a model, which ``name_or_path`` or the settings name.

    ChatError: the model has no such option, or the package no such renderer.
    """

    def __init__(self, tokenizer: Tokenizer | Encoder, options: Mapping[str, Any]) -> None:
        self._encoder = encoder_of(tokenizer)
        self._options = options
        named = self._encoder.how.renderer
        try:
            keeping = config_from_name(named or "auto") or AutoRendererConfig()
            keeping = type(keeping).model_validate({**keeping.model_dump(), "thinking_retention": "all"})
            self._renderer = create_renderer(self._encoder, keeping, chat_template_kwargs=options or None)
        except (AssertionError, ValueError) as error:
            raise ChatError(str(error)) from error

    def prompt(self, messages: Sequence[ChatMessage], tools: Tools) -> list[int]:
        return self._render(self._encoder.written(messages, tools), tools, prompted=True)

    def configured(self, options: TemplateOptions) -> "PackagedRenderer":
        return PackagedRenderer(self._encoder, {**self._options, **options})

    def turn(self, message: ChatMessage, tools: Tools) -> list[int]:
        whole = self._render([OPENING, for_template(message)], tools, prompted=False)
        return after(self._render([OPENING], tools, prompted=True), whole)

    def extension(self, drawn: DrawnTurn, messages: Sequence[ChatMessage], tools: Tools) -> list[int] | None:
        before = [*drawn.prompt, *drawn.token_ids]
        whole = self._renderer.bridge_to_next_turn(
            list(drawn.prompt),
            list(drawn.token_ids),
            self._encoder.written(messages, tools),
            tools=self._encoder.hidden_tools(tools),
        )
        if whole is None or whole.token_ids[: len(before)] != before:
            return None
        return list(whole.token_ids[len(before) :])

    def begun(self, prompt: Sequence[int], text: str) -> list[int]:
        return self._encoder.begun(prompt, text)

    def read(self, drawn: DrawnTurn, tools: Tools) -> Read:
        given = [dict(tool) for tool in tools or ()] or None
        read = self._renderer.parse_response(list(drawn.token_ids), tools=given, prompt_ids=list(drawn.prompt))
        found, texts = Read("", reasoning=read.reasoning_content), [read.content] if read.content else []
        for call in read.tool_calls:
            begin, end = call.token_span or (0, 0)
            if not tools:
                taken = False
            elif call.status is ToolCallParseStatus.OK:
                taken = found.add(call.name, call.arguments, call.raw)
            else:
                taken = found.flaw(call.raw, call.status.value)
            if not taken:
                texts.append(self._encoder.model.decode(drawn.token_ids[begin:end]) or call.raw)
        found.content = "\n".join(texts)
        return found

    def speech(self, prompt: Sequence[int], stop: Sequence[str], tools: Tools = None) -> Speech:
        # What the package reads as text is known at the end of a turn.
        del prompt, stop, tools
        return Speech(self._encoder.model, (), whole=True)

    def _render(self, messages: Sequence[ChatMessage], tools: Tools, *, prompted: bool) -> list[int]:
        try:
            return list(
                self._renderer.render_ids(
                    messages, tools=self._encoder.hidden_tools(tools), add_generation_prompt=prompted
                )
            )
        except (ValueError, TypeError, KeyError) as error:
            told = self._encoder.shown(f"{type(error).__name__}: {error}")
            raise ChatError(f"the model's renderer cannot write this: {told}") from error
