"""OpenAI's responses, as requests for chat completions and what was said (pure).

A request is made into a chat's: items of its input become messages, and back. What it asks for and cannot have is
refused by name, and the response repeats what it was made with: ``strict`` of a tool is false there, and
``parallel_tool_calls`` true. Reasoning that is sent back is not read: what was drawn is known.

In a stream each item is whole before the next begins::

    response.created, response.in_progress
        reasoning, if any:  output_item.added, content_part.added, reasoning_text.delta and .done, content_part.done
        the text, if any:   output_item.added, content_part.added, output_text.delta ..., .done, content_part.done
        each tool call:     output_item.added, function_call_arguments.delta and .done
                            output_item.done of each
    response.completed; response.incomplete where a limit has ended it, response.failed where an engine has
"""

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec

from schemas.sampling import MAX_NEW_TOKENS, Sampling
from trinity_bus.chat.messages import ChatError, canonical
from trinity_bus.chat.openai import (
    HINTS,
    OPTIONS,
    ChatRequest,
    Choices,
    ConversationShape,
    Reasoning,
    TokenTexts,
    not_had,
    read_body,
    read_fields,
    read_flag,
    read_required,
    read_sampling,
    read_shape,
    read_text,
)
from trinity_bus.chat.rendering import read_options
from trinity_bus.chat.session import ModelReply

MAX_ITEMS: Final = 1 << 14  # of one input
MAX_TOOLS: Final = 1024
MAX_TOLD: Final = 256 << 10  # bytes of what a response repeats
MAX_NAME_CHARS: Final = 128  # of a tool, and of the id of a call or a response
_MAX_METADATA: Final = (16, 64, 512)  # pairs, characters of a key, of a value: as OpenAI has them

_TAKEN: Final = frozenset(
    {"input", "instructions", "model", "previous_response_id", "store", "stream", "max_output_tokens", "temperature"}
    | {"top_p", "tools", "tool_choice", "parallel_tool_calls", "text", "metadata", "reasoning", OPTIONS}
)
_PASSED_OVER: Final = HINTS | {"client_metadata", "max_tool_calls"}  # calls of tools that are built in
_NEUTRAL: Final[Mapping[str, Sequence[Any]]] = {
    "background": (False,),
    # Reasoning needs no other form to come back: what was drawn is known.
    "include": ([], ["reasoning.encrypted_content"]),
    "stream_options": ({}, {"include_obfuscation": False}),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
_ITEM: Final = frozenset({"type", "id", "status"})
_PARTS: Final = ("input_text", "output_text", "text", "refusal")
_FORMAT: Final = ("type", "name", "description", "schema", "strict", "json_schema")
_TEXT: Final[Mapping[str, Any]] = {"type": "output_text", "annotations": [], "logprobs": []}
_PAGES: Final[Mapping[str, Sequence[Any]]] = {"limit": [*map(str, range(1, 101))], "order": ("asc", "desc")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest(ChatRequest):
    told: Mapping[str, Any]  # what the response repeats


def read_responses_request(body: bytes, sampling: Sampling) -> ResponseRequest:
    """Read a request for a response; raises ChatError, with the field, where it asks for what cannot be had."""
    asked = read_body(body, _TAKEN | _PASSED_OVER, _NEUTRAL)
    # Effort and verbosity are the model's to say.
    read_fields(asked.get("reasoning", {}), frozenset({"effort"}), {"summary": ("auto",)}, "reasoning")
    text = read_fields(asked.get("text", {}), frozenset({"format", "verbosity"}), {}, "text")
    instructions = read_text(asked["instructions"], "instructions") if "instructions" in asked else None
    previous = _name(asked, "previous_response_id") if "previous_response_id" in asked else None
    stored = "store" not in asked or read_flag(asked, "store")
    read_flag(asked, "parallel_tool_calls")
    tools = _tools(asked.get("tools", []))
    choice = asked.get("tool_choice", "auto")
    called = [] if choice == "none" else tools
    match choice:
        case {"type": "function", "name": str(name)}:
            required = read_required({"type": "function", "function": {"name": name}}, tools)
            choice = {"type": "function", "name": name}
        case _:
            required = read_required(choice, tools)
    if (shape := read_shape(text.get("format"), "text.format", called)) is not None:
        sampling = sampling.model_copy(update={"structured_outputs": shape})
    most = asked.get("max_output_tokens")
    if most is not None and (type(most) is not int or not 1 <= most <= MAX_NEW_TOKENS):
        raise not_had("max_output_tokens", most)
    # All tokens are what is drawn from without it, too.
    top_p = None if asked.get("top_p") == 1 else asked.get("top_p")
    sampling = read_sampling(sampling, most, temperature=asked.get("temperature"), top_p=top_p)
    shown: Mapping[str, Any] = text.get("format", {"type": "text"})
    told = {
        "instructions": instructions,
        "max_output_tokens": most,
        "metadata": _metadata(asked.get("metadata", {})),
        "previous_response_id": previous,
        "store": stored,
        "temperature": sampling.temperature,
        "text": {"format": {key: value for key, value in shown.items() if key in _FORMAT}},
        "tool_choice": choice,
        "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in tools],
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
    }
    # What no text can hold is refused now, too.
    sizes = {field: len(canonical(value)) for field, value in told.items()}
    if sum(sizes.values()) > MAX_TOLD:
        longest = max(sizes, key=sizes.__getitem__)
        raise ChatError(f"{longest} is too long: a response repeats {MAX_TOLD} bytes at most", longest)
    return ResponseRequest(
        model=str(asked.get("model", "")),
        messages=_messages(asked.get("input", [])),
        tools=called or None,
        sampling=sampling,
        stream=read_flag(asked, "stream"),
        options=read_options(asked.get(OPTIONS, {})),
        required=required,
        shows_reasoning=True,
        previous=previous,
        opening=[{"role": "system", "content": instructions}] if instructions else [],
        stored=stored,
        told=told,
    )


def _messages(given: Any) -> list[dict[str, Any]]:
    """Return items as messages: calls are the assistant's whose text, if any, they follow."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    thought: dict[str, Any] = {}  # of the assistant's turn that follows
    for item, where in _listed(given, "input", MAX_ITEMS):
        match item.get("type", "message"):
            case "message":
                fields = read_fields(item, _ITEM | {"role", "content", "phase"}, {}, where)
                if (role := fields.get("role")) not in ("user", "assistant", "system", "developer"):
                    raise not_had(f"{where}.role", role)
                said = {"role": role, "content": read_text(fields.get("content"), f"{where}.content", _PARTS)}
                messages.append({**said, **thought} if role == "assistant" else said)
                thought = {}
            case "function_call":
                fields = read_fields(item, _ITEM | {"call_id", "name", "arguments"}, {}, where)
                name, call_id = (_name(fields, one, where) for one in ("name", "call_id"))
                arguments = _written(read_text(fields.get("arguments"), f"{where}.arguments"))
                function = {"name": name, "arguments": arguments}
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": "", **thought})
                    thought = {}
                calls = messages[-1].setdefault("tool_calls", [])
                calls.append({"id": call_id, "type": "function", "function": function})
            case "function_call_output":
                fields = read_fields(item, _ITEM | {"call_id", "output"}, {}, where)
                result = read_text(fields.get("output"), f"{where}.output", _PARTS)
                messages.append({"role": "tool", "tool_call_id": _name(fields, "call_id", where), "content": result})
            case "reasoning":
                fields = read_fields(item, _ITEM | {"summary", "content"}, {}, where)
                if content := fields.get("content"):
                    thought = {"reasoning_content": read_text(content, f"{where}.content", ("reasoning_text",))}
            case other:
                raise not_had(f"{where}.type", other)
    return messages


def input_items(messages: Sequence[bytes], answer_id: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of messages, as JSON, as items; ChatError where the query asks for what cannot be had."""
    asked = read_fields({"limit": "20", "order": "desc", **query}, frozenset({"after"}), _PAGES, "query")
    limit, step = int(asked["limit"]), 1 if asked["order"] == "asc" else -1
    own = f"item_{answer_id.partition('_')[2]}"
    # Of long conversations never all at once.
    items = (item for at, some in [*enumerate(messages)][::step] for item in _items_of(some, f"{own}{at:05d}")[::step])
    if "after" in asked and all(item["id"] != asked["after"] for item in items):
        raise not_had("query.after", asked["after"])
    page = [*itertools.islice(items, limit)]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    more = next(items, None) is not None
    return {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": more}


def _items_of(messages: bytes, named: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for message in msgspec.json.decode(messages):
        role, text, calls = message["role"], message["content"], message.get("tool_calls", ())
        if role == "tool":
            items.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": text})
        elif text or not calls:
            part = {**_TEXT, "text": text} if role == "assistant" else {"type": "input_text", "text": text}
            items.append({"type": "message", "role": role, "content": [part]})
        items += [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls]
    return [{"id": f"{named}{place:05d}", "status": "completed", **item} for place, item in enumerate(items)]


def _written(arguments: str) -> str:
    """Return the arguments of a call without what no prompt shows of them, such as blanks; as they stand if no JSON."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.dumps(json.loads(arguments), ensure_ascii=False) if arguments.strip() else "{}"
    return arguments


def _tools(given: Any) -> list[dict[str, Any]]:
    tools = []
    for tool, where in _listed(given, "tools", MAX_TOOLS):
        if tool.get("type") != "function":
            raise not_had(f"{where}.type", tool.get("type"))
        fields = read_fields(tool, frozenset({"type", "name", "description", "parameters", "strict"}), {}, where)
        read_flag(fields, "strict")
        function = {"name": _name(fields, "name", where), "parameters": fields.get("parameters", {"type": "object"})}
        if "description" in fields:
            function["description"] = read_text(fields["description"], f"{where}.description")
        tools.append({"type": "function", "function": function})
    return tools


def _metadata(given: Any) -> dict[str, str]:
    pairs, name_chars, chars = _MAX_METADATA
    if not isinstance(given, dict) or len(given) > pairs:
        raise ChatError(f"metadata is an object of at most {pairs} fields", "metadata")
    for name, value in given.items():
        if len(name) > name_chars or not isinstance(value, str) or len(value) > chars:
            raise ChatError(f"metadata has texts of {chars} characters, by names of {name_chars}", "metadata")
    return given


def _listed(given: Any, where: str, most: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the objects of a list, and where each is."""
    if not isinstance(given, list) or len(given) > most:
        raise ChatError(f"{where} is a list of at most {most} objects", where)
    for place, one in enumerate(given):
        at = f"{where}[{place}]"
        if not isinstance(one, dict):
            raise ChatError(f"{at} is no JSON object", at)
        yield one, at


def _name(fields: Mapping[str, Any], name: str, place: str = "") -> str:
    value, where = fields.get(name), f"{place}.{name}" if place else name
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME_CHARS:
        raise ChatError(f"{where} is a text of 1 to {MAX_NAME_CHARS} characters", where)
    return value


@dataclass(slots=True)
class ResponseShape(ConversationShape):
    named: ClassVar[bool] = True
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _output: list[dict[str, Any]] = field(default_factory=list)  # items that are whole
    _speaks: bool = False  # whether the text has begun

    def body(self, choices: Choices) -> dict[str, Any]:
        ((said, _),) = choices
        *_, ended = self.last(0, said, said.content, None)
        response: dict[str, Any] = ended["response"]
        return response

    def failed(self, message: str, kind: str) -> dict[str, Any]:
        del kind
        error = {"code": "server_error", "message": message}
        return self._event("failed", response=self._response("failed", error=error))

    def start(self, index: int) -> Iterator[dict[str, Any]]:
        del index
        for kind in ("created", "in_progress"):
            yield self._event(kind, response=self._response("in_progress"))

    def more(self, index: int, text: str, reasoning: Reasoning) -> Iterator[dict[str, Any]]:
        del index
        if not self._speaks:
            yield from self._begin(reasoning(), speaks=True)
        yield self._of_text("delta", self._message("", "in_progress"), delta=text)

    def last(self, index: int, said: ModelReply, rest: str, tokens: TokenTexts) -> Iterator[dict[str, Any]]:
        del tokens
        status = "incomplete" if said.finish_reason == "length" else "completed"
        if not self._speaks:
            yield from self._begin(said.reasoning, speaks=bool(said.content or not said.tool_calls))
        if self._speaks:
            if rest:
                yield from self.more(index, rest, lambda: None)
            yield from self._close(self._message(said.content, "completed" if said.tool_calls else status))
        for left, call in enumerate(said.tool_calls, 1 - len(said.tool_calls)):
            arguments = json.dumps(call.arguments)
            item = self._item("fc", "function_call", "completed" if left else status)
            item |= {"call_id": call.id, "name": call.name, "arguments": arguments}
            at = {"item_id": item["id"], "output_index": len(self._output)}
            yield self._added(item, arguments="")
            yield self._event("function_call_arguments.delta", **at, delta=arguments)
            yield self._event("function_call_arguments.done", **at, name=call.name, arguments=arguments)
            yield self._done(item)
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        usage = {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": said.tokens,
            "output_tokens_details": {"reasoning_tokens": said.reasoning_tokens},
            "total_tokens": self.prompt_tokens + said.tokens,
        }
        yield self._event(status, response=self._response(status, incomplete_details=details, usage=usage))

    def _begin(self, reasoning: str | None, *, speaks: bool) -> Iterator[dict[str, Any]]:
        """Show the reasoning, if any, and begin the text, if there is to be one."""
        if reasoning:
            item = self._item("rs", "reasoning", "completed")
            item |= {"summary": [], "content": [{"type": "reasoning_text", "text": reasoning}]}
            yield from self._open(item)
            yield self._of_text("delta", item, delta=reasoning)
            yield from self._close(item)
        if speaks:
            self._speaks = True
            yield from self._open(self._message("", "in_progress"))

    def _message(self, text: str, status: str) -> dict[str, Any]:
        return {**self._item("msg", "message", status), "role": "assistant", "content": [{**_TEXT, "text": text}]}

    def _item(self, kind: str, named: str, status: str) -> dict[str, Any]:
        number = f"{self.id.partition('_')[2]}{len(self._output):02d}"
        return {"id": f"{kind}_{number}", "type": named, "status": status}

    def _open(self, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        yield self._added(item, content=[])
        yield self._of_part("content_part.added", item, part={**item["content"][0], "text": ""})

    def _close(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        (part,) = item["content"]
        yield self._of_text("done", item, text=part["text"])
        yield self._of_part("content_part.done", item, part=part)
        yield self._done(item)

    def _added(self, item: Mapping[str, Any], **empty: Any) -> dict[str, Any]:
        begun = {**item, **empty, "status": "in_progress"}
        return self._event("output_item.added", output_index=len(self._output), item=begun)

    def _done(self, item: dict[str, Any]) -> dict[str, Any]:
        self._output.append(item)
        return self._event("output_item.done", output_index=len(self._output) - 1, item=item)

    def _of_text(self, kind: str, item: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        (part,) = item["content"]
        fields |= {name: part[name] for name in ("logprobs",) if name in part}
        return self._of_part(f"{part['type']}.{kind}", item, **fields)

    def _of_part(self, kind: str, item: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        at = {"item_id": item["id"], "output_index": len(self._output), "content_index": 0}
        return self._event(kind, **at, **fields)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}", "sequence_number": next(self._numbers), **fields}

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": self.model,
            "status": status,
            "output": [*self._output],
            "error": None,
            "incomplete_details": None,
            "usage": None,
            "background": False,
            "parallel_tool_calls": True,
            "service_tier": "default",
            "truncation": "disabled",
            **self.asked.told,
            **more,
        }
