"""Spans of runs, of their turns and of their calls of tools, in the names of the conventions for generative AI.

======================  ==============================================================================================
span                    what it lasts for
======================  ==============================================================================================
``invoke_agent NAME``   one run of a workflow that is written for one run at a time
``chat MODEL``          one turn of a conversation: a request of a run, of runs that are drawn together, or of a client
                        of the gateway, to a model. The engine's own ``text_completion`` is its child, and has the
                        tokens' numbers
``execute_tool NAME``   one call of a tool
======================  ==============================================================================================

Of an error that ends one its type is told, and no text. Messages, arguments and results are content, which is told
where ``telemetry.record_content`` is set: as JSON, each text cut at ``MAX_TEXT`` characters, and of the messages the
last that have ``MAX_CONTENT`` characters together.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from schemas.errors import encodable
from trinity_bus.telemetry import conventions as names

MAX_TEXT: Final = 4096  # characters of one text
MAX_CONTENT: Final = 32_768  # characters of one attribute
_MAX_NAME: Final = 200  # characters of what an agent or a workflow calls something
_MOST_PARTS: Final = 64  # of one message
_TRACER = trace.get_tracer("trinity_bus.generative")


@dataclass(slots=True)
class ContentRecording:
    on: bool = False


CONTENT: Final = ContentRecording()  # of this process, as its tracer provider is


@contextmanager
def operation_span(
    operation: str, of: str, attributes: Mapping[str, AttributeValue], context: Context | None = None
) -> Iterator[Span]:
    """Provide the span of an operation, a child of the current one where no other ``context`` is given."""
    # Of a model, which may be in another process; agents and tools are in this one.
    is_model = operation not in ("invoke_agent", "execute_tool")
    with _TRACER.start_as_current_span(
        f"{operation} {_name(of)}",
        context=context,
        kind=SpanKind.CLIENT if is_model else SpanKind.INTERNAL,
        attributes={names.GEN_AI_OPERATION_NAME: operation, **(_model(of) if is_model else {}), **attributes},
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except Exception as error:
            note_error(span, error)
            raise


def agent_span(agent: str, model: str, conversation: str) -> AbstractContextManager[Span]:
    attributes = {names.GEN_AI_AGENT_NAME: agent, names.GEN_AI_CONVERSATION_ID: conversation, **_model(model)}
    return operation_span("invoke_agent", agent, attributes)


def turn_span(model: str, conversation: str, context: Context | None = None) -> AbstractContextManager[Span]:
    return operation_span("chat", model, {names.GEN_AI_CONVERSATION_ID: conversation}, context)


def content_span(model: str, conversation: str) -> AbstractContextManager[Span]:
    """Provide the span of a turn that the engine's own tells of as well, but for content: where that is told."""
    return turn_span(model, conversation) if CONTENT.on else nullcontext(INVALID_SPAN)


def tool_span(name: str, conversation: str) -> AbstractContextManager[Span]:
    attributes = {
        names.GEN_AI_TOOL_NAME: _name(name),
        names.GEN_AI_TOOL_TYPE: "function",
        names.GEN_AI_CONVERSATION_ID: conversation,
    }
    return operation_span("execute_tool", name, attributes)


def _model(name: str) -> dict[str, str]:
    return {names.GEN_AI_PROVIDER_NAME: names.PROVIDER, names.GEN_AI_REQUEST_MODEL: _name(name)}


def _name(given: str) -> str:
    # With half a character none of the spans that are exported together would be.
    return encodable(given[:_MAX_NAME])


def note_error(span: Span, error: Exception) -> None:
    span.set_attribute(names.ERROR_TYPE, type(error).__name__)
    span.set_status(Status(StatusCode.ERROR))


def note_messages(span: Span, messages: Sequence[Mapping[str, Any]]) -> None:
    """Tell what the model is asked with: messages of OpenAI's shape."""
    if CONTENT.on and span.is_recording():
        span.set_attribute(names.GEN_AI_INPUT_MESSAGES, _newest(map(_message, reversed(messages))))


def note_replies(span: Span, replies: Iterable[Mapping[str, Any]], finish_reasons: Sequence[str]) -> None:
    """Tell how responses have ended, and, as messages of OpenAI's shape, what they are."""
    span.set_attribute(names.GEN_AI_RESPONSE_FINISH_REASONS, list(finish_reasons))
    if CONTENT.on and span.is_recording():
        told = [_message(reply) | {"finish_reason": why} for reply, why in zip(replies, finish_reasons, strict=True)]
        span.set_attribute(names.GEN_AI_OUTPUT_MESSAGES, _newest(reversed(told)))


def note_value(span: Span, name: str, value: Any) -> None:
    """Tell what a tool is called with, or has returned."""
    if CONTENT.on and span.is_recording():
        text = _json(value)
        span.set_attribute(name, text if len(text) <= MAX_CONTENT else _json(text[:MAX_TEXT]))


def _json(value: Any) -> str:
    try:
        return encodable(json.dumps(_cut(value), default=lambda one: str(one)[:MAX_TEXT], ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        return json.dumps(f"cannot be shown: {type(error).__name__}")


def _cut(value: Any) -> Any:
    # Before it is written, in all its length; more items than that are cut as text.
    match value:
        case str() | bytes():
            return value[:MAX_TEXT]
        case dict():
            return {_cut(key): _cut(one) for key, one in value.items()}
        case list() | tuple():
            return [_cut(one) for one in value[:MAX_CONTENT]]
        case _:
            return value


def _newest(messages: Iterable[Mapping[str, Any]]) -> str:
    # The last ones of messages that come from the last to the first.
    told: list[str] = []
    left = MAX_CONTENT
    for message in messages:
        text = _json(message)
        left -= len(text) + 2
        if left < 0:
            break
        told.append(text)
    return f"[{', '.join(reversed(told))}]"


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    # Of whatever shape a client has sent it.
    role, content = message.get("role"), message.get("content")
    text = _text(content if isinstance(content, str) else "".join(_text(one.get("text", "")) for one in _some(content)))
    if role == "tool":
        parts = [{"type": "tool_call_response", "id": _text(message.get("tool_call_id")), "response": text}]
    else:
        parts = [{"type": "text", "content": text}] if text else []
    if reasoning := message.get("reasoning_content"):
        parts.insert(0, {"type": "reasoning", "content": _text(reasoning)})
    for call in _some(message.get("tool_calls")):
        if isinstance(function := call.get("function"), Mapping):
            said = {"name": _text(function.get("name")), "arguments": _text(function.get("arguments"))}
            parts.append({"type": "tool_call", "id": _text(call.get("id")), **said})
    return {"role": _text(role), "parts": parts}


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else _json(value))[:MAX_TEXT]


def _some(given: Any) -> list[Mapping[str, Any]]:
    return [one for one in given[:_MOST_PARTS] if isinstance(one, Mapping)] if isinstance(given, list | tuple) else []
