"""Chat messages and tools, OpenAI's shape: what a chat template is given.

Ids, names and arguments are carried as they are, so that a conversation can be continued: a result of a tool names the
call that it answers. Arguments are the text that the model wrote, which need not be JSON.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from schemas.record import PlainMap, Record

MAX_PROMPT_CHARS = 1 << 20
MAX_MESSAGES = 4096
MAX_MESSAGE_ITEMS = 1024
"""Calls of tools and parts of content, of all messages of a task together: each costs a reader half a KiB."""
MAX_TOOLS = 128
MAX_NAME_CHARS = 200
MAX_DESCRIPTION_CHARS = 1 << 16

type _Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
type _Text = Annotated[str, Field(max_length=MAX_PROMPT_CHARS)]


class ContentPart(Record):
    """A part of a message's content. Models here read text alone."""

    SCHEMA: ClassVar[str] = "content_part"

    type: Literal["text"] = "text"
    text: _Text


class FunctionCall(Record):
    """Which function, with what."""

    SCHEMA: ClassVar[str] = "function_call"

    name: _Name
    arguments: _Text = ""
    """As the model wrote them; JSON, where it kept to the rules."""


class ToolCall(Record):
    """A model asks for a tool."""

    SCHEMA: ClassVar[str] = "tool_call"

    id: _Name
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Record):
    """One chat message, OpenAI's shape."""

    SCHEMA: ClassVar[str] = "message"

    role: Annotated[str, Field(min_length=1, max_length=32)]
    content: _Text | Annotated[list[ContentPart], Field(max_length=MAX_MESSAGE_ITEMS)] | None = None
    """Text, or parts of it. None where an assistant does nothing but call tools."""
    name: _Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(min_length=1, max_length=MAX_MESSAGE_ITEMS)] | None = None
    """Of an assistant."""
    tool_call_id: _Name | None = None
    """Of a tool: the call that this is the result of."""
    reasoning_content: _Text | None = None
    """What an assistant thought before it answered."""

    @model_validator(mode="after")
    def _says_something(self) -> "Message":
        if self.content is None and self.tool_calls is None and self.reasoning_content is None:
            raise ValueError("a message needs content, tool_calls or reasoning_content")
        return self


class FunctionSchema(Record):
    """A function that a model may call."""

    SCHEMA: ClassVar[str] = "function_schema"

    name: _Name
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION_CHARS)] | None = None
    parameters: PlainMap | None = None
    """A JSON schema of its arguments."""
    strict: bool | None = None


class Tool(Record):
    """A tool that a model may call, OpenAI's shape."""

    SCHEMA: ClassVar[str] = "tool"

    type: Literal["function"] = "function"
    function: FunctionSchema


def few_items(messages: Any) -> Any:
    """Return messages whose calls and parts are not too many to build; whatever else they are is for others to judge.

    Raises:
        ValueError: There are more than ``MAX_MESSAGE_ITEMS``.
    """
    if isinstance(messages, list):
        fields = (one if isinstance(one, Mapping) else getattr(one, "__dict__", {}) for one in messages)
        lists = [of.get(name) for of in fields for name in ("tool_calls", "content")]
        count = sum(len(one) for one in lists if isinstance(one, list))
        if count > MAX_MESSAGE_ITEMS:
            raise ValueError(
                f"{count} tool calls and parts of content in all messages, at most {MAX_MESSAGE_ITEMS} are allowed"
            )
    return messages
