"""Spans of runs, of their turns and of their calls of tools, in the names of the conventions for generative AI.

======================  ==============================================================================================
span                    what it lasts for
======================  ==============================================================================================
``invoke_agent NAME``   one run of a workflow that is written for one run at a time
``chat MODEL``          one turn of a conversation: a request of a run, or of a client of the gateway, to a model. The
                        engine's own ``text_completion`` is its child, and has the tokens' numbers
``execute_tool NAME``   one call of a tool
======================  ==============================================================================================

Of an error that ends one its type is told, and no text. What was said is told in none: the samples have it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from schemas.errors import encodable
from trinity_bus.telemetry import conventions as names

_MAX_NAME: Final = 200  # characters of what an agent or a workflow calls something
_TRACER = trace.get_tracer("trinity_bus.generative")


@contextmanager
def operation_span(
    operation: str, of: str, attributes: Mapping[str, AttributeValue], context: Context | None = None
) -> Iterator[Span]:
    """Provide the span of an operation, a child of the current one where no other ``context`` is given."""
    # The model may be in another process, the rest is done in this one.
    kind = SpanKind.INTERNAL if operation in ("invoke_agent", "execute_tool") else SpanKind.CLIENT
    with _TRACER.start_as_current_span(
        f"{operation} {_name(of)}",
        context=context,
        kind=kind,
        attributes={names.GEN_AI_OPERATION_NAME: operation, **attributes},
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except Exception as error:
            note_error(span, error)
            raise


def agent_span(agent: str, model: str, conversation: str) -> AbstractContextManager[Span]:
    return operation_span("invoke_agent", agent, {names.GEN_AI_AGENT_NAME: agent, **_of(model, conversation)})


def turn_span(model: str, conversation: str, context: Context | None = None) -> AbstractContextManager[Span]:
    return operation_span("chat", model, _of(model, conversation), context)


def tool_span(name: str, conversation: str) -> AbstractContextManager[Span]:
    attributes = {
        names.GEN_AI_TOOL_NAME: _name(name),
        names.GEN_AI_TOOL_TYPE: "function",
        names.GEN_AI_CONVERSATION_ID: conversation,
    }
    return operation_span("execute_tool", name, attributes)


def _of(model: str, conversation: str) -> dict[str, str]:
    return {
        names.GEN_AI_PROVIDER_NAME: names.PROVIDER,
        names.GEN_AI_REQUEST_MODEL: _name(model),
        names.GEN_AI_CONVERSATION_ID: conversation,
    }


def _name(given: str) -> str:
    # With half a character none of the spans that are exported together would be.
    return encodable(given[:_MAX_NAME])


def note_error(span: Span, error: Exception) -> None:
    span.set_attribute(names.ERROR_TYPE, type(error).__name__)
    span.set_status(Status(StatusCode.ERROR))


def note_finish(span: Span, reasons: Iterable[str]) -> None:
    """Tell how responses have ended."""
    span.set_attribute(names.GEN_AI_RESPONSE_FINISH_REASONS, list(reasons))
