"""Chat messages and tools, OpenAI's shape: what a chat template is given.

Ids, names and arguments are carried as they are, so that a conversation can be continued: a result of a tool names the
call that it answers. Arguments are the text that the model wrote, which need not be JSON.

Training sets have them otherwise: arguments as objects, calls and their results without ids, a function without the
object around it, an empty list of calls, empty ids and names, turns of ShareGPT's (``from`` and ``value``); messages,
calls or tools as one JSON text. From Parquet every object has the fields of all others too, as nulls. ``in_one_shape``
makes records of them, at the edge; on the wire there is the one shape.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from schemas.record import PlainMap, Record

MAX_PROMPT_CHARS = 1 << 20
MAX_MESSAGES = 4096
# calls of tools and parts of content, of all messages of a task together: each costs a reader half a KiB
MAX_MESSAGE_ITEMS = 1024
MAX_TOOLS = 128
MAX_NAME_CHARS = 200
MAX_DESCRIPTION_CHARS = 1 << 16

# ShareGPT's, where messages have roles
_SPEAKERS = {"human": "user", "gpt": "assistant", "observation": "tool", "function_response": "tool"}

# What a message has not, some tables have as an empty list or text
_MAY_BE_EMPTY = ("tool_calls", "tool_call_id", "name")

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
    """Return messages; raise ValueError for more than ``MAX_MESSAGE_ITEMS`` calls and parts, and nothing else."""
    if isinstance(messages, list):
        fields = (one if isinstance(one, Mapping) else getattr(one, "__dict__", {}) for one in messages)
        lists = [of.get(name) for of in fields for name in ("tool_calls", "content")]
        count = sum(len(one) for one in lists if isinstance(one, list))
        if count > MAX_MESSAGE_ITEMS:
            raise ValueError(
                f"{count} tool calls and parts of content in all messages, at most {MAX_MESSAGE_ITEMS} are allowed"
            )
    return messages


def in_one_shape(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a task or an example with messages and tools as records have them.

    Calls without ids get some, and results that name no call name the first that fits and has no result yet. Nulls are
    left out, whatever they are called. Whatever else is wrong is for the record to refuse, but for ValueError:
    messages, calls or tools are a text that is no JSON, or arguments cannot be written as JSON; either may be too deep.
    """
    told = {name: value for name, value in fields.items() if value is not None}
    try:
        if isinstance(messages := from_text(told.get("messages")), list):
            told["messages"] = _with_ids([_turn(one) for one in messages])
        if isinstance(tools := from_text(told.get("tools")), list):
            given = [_without_nulls(one) for one in tools]
            told["tools"] = [
                {"type": "function", "function": one} if isinstance(one, dict) and "name" in one else one
                for one in given
            ]
    except RecursionError as error:
        raise ValueError("messages or tools are nested too deeply") from error
    return told


def _turn(one: Any) -> Any:
    # As a message, where it is ShareGPT's.
    match one:
        case {"role": str()}:
            return one
        case {"from": "function_call", "value": str(call)}:
            said = {"role": "assistant", "tool_calls": [json.loads(call)]}
        case {"from": str(speaker), "value": value}:
            said = {"role": _SPEAKERS.get(speaker, speaker), "content": value}
        case _:
            return one
    if said["role"] == "assistant":
        # No record holds that a turn is not learned from: it is refused, and not learned from as others are.
        said |= {name: one[name] for name in ("weight", "train") if one.get(name) not in (None, 1)}
    return said


def from_text(given: Any) -> Any:
    # Of a field that may be JSON in a text.
    return (json.loads(given) or []) if isinstance(given, str) else given


def _with_ids(messages: list[Any]) -> list[Any]:
    told: list[Any] = []
    count, open_calls = 0, list[Any]()
    for message in messages:
        if not isinstance(message, Mapping):
            told.append(message)
            continue
        one = {
            name: [_without_nulls(part) for part in value] if name == "content" and isinstance(value, list) else value
            for name, value in message.items()
            if value is not None and (name not in _MAY_BE_EMPTY or value not in ("", []))
        }
        if "tool_calls" in one:
            one["tool_calls"] = from_text(one["tool_calls"]) or None
        if isinstance(written := one.get("tool_calls"), list):
            calls = [_call(call, number) for number, call in enumerate(written, count)]
            count += len(calls)
            open_calls += [call for call in calls if isinstance(call, Mapping)]
            told.append({**one, "tool_calls": calls})
        elif one.get("role") == "tool" and open_calls:
            names = [one.get("tool_call_id"), one.get("name")]
            fits = (call for call in open_calls if call.get("id") == names[0] or _name_of(call) == names[1])
            answered = next(fits, None if names[0] is not None else open_calls[0])
            if answered is not None:
                open_calls.remove(answered)
            told.append(one if answered is None or names[0] is not None else {**one, "tool_call_id": answered["id"]})
        else:
            told.append(one)
    return told


def _call(call: Any, number: int) -> Any:
    # In the one shape, as far as it is a call.
    if not isinstance(call, Mapping):
        return call
    made = {name: value for name, value in call.items() if value is not None}
    if "function" not in made and "name" in made:
        made["function"] = {"name": made.pop("name"), "arguments": made.pop("arguments", {})}
    function = made.get("function")
    if isinstance(function, Mapping) and isinstance(arguments := function.get("arguments"), Mapping | list):
        try:
            text = json.dumps(_without_nulls(arguments), ensure_ascii=False)
        except TypeError as error:
            raise ValueError(f"arguments of a tool call cannot be written as JSON: {error}") from error
        made["function"] = {**function, "arguments": text}
    elif isinstance(function, Mapping):
        made["function"] = {name: value for name, value in function.items() if value is not None}
    return {"id": f"call{number:05d}", **made}


def _name_of(call: Mapping[str, Any]) -> Any:
    function = call.get("function")
    return function.get("name") if isinstance(function, Mapping) else None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value
