"""Anthropic's messages, as requests for chat completions and what was said (pure).

A request is made into one of OpenAI's, and read as such: what is taken, passed over and refused is as there. Blocks of
text, tool use and tool results become messages with text, tool calls and tools' answers, and back.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from schemas.sampling import Sampling
from trinity_bus.chat.messages import ChatError
from trinity_bus.chat.openai import (
    ChatRequest,
    Choices,
    ConversationShape,
    Reasoning,
    TokenTexts,
    not_had,
    read_body,
    read_flag,
    read_objects,
    read_sampling,
    read_shape,
    read_text,
    tool_names,
)
from trinity_bus.chat.session import ModelReply

_TAKEN: Final = frozenset(
    {"messages", "system", "model", "tools", "tool_choice", "max_tokens", "stop_sequences", "stream", "thinking"}
    | {"output_config"}
)
_PASSED_OVER: Final = frozenset(
    {
        *("temperature", "top_p", "top_k", "metadata", "service_tier"),
        *("anthropic_beta", "betas", "cache_control", "context_management", "inference_geo", "speed"),
        *("diagnostics", "fallbacks", "anthropic_version"),
    }
)
_NEUTRAL: Final[Mapping[str, Sequence[Any]]] = {"mcp_servers": ([],)}


def read_messages_request(body: bytes, sampling: Sampling) -> ChatRequest:
    """Read a request for a message; raises ChatError where it asks for what cannot be had."""
    asked = read_body(body, _TAKEN | _PASSED_OVER, _NEUTRAL)
    messages = [message for one in read_objects(asked, "messages") for message in _messages_of(one)]
    begun = _begun(messages.pop()) if messages and messages[-1]["role"] == "assistant" else ""
    if asked.get("system"):
        messages.insert(0, {"role": "system", "content": read_text(asked["system"], "system")})
    thinking = asked.get("thinking", {})
    if not isinstance(thinking, dict):
        raise ChatError("thinking is an object with a type")
    tools = [_tool(one) for one in read_objects(asked, "tools")]
    match asked.get("tool_choice", {"type": "auto"}):
        case {"type": "auto"}:
            required: list[str] = []
        case {"type": "none"}:
            required, tools = [], []
        case {"type": "any"}:
            required = tool_names(tools)
        case {"type": "tool", "name": str(name)}:
            required = tool_names(tools, name)
        case other:
            raise not_had("tool_choice", other)
    output = asked.get("output_config", {})
    if not isinstance(output, dict):
        raise ChatError("output_config is an object")
    if (shape := read_shape(output.get("format"), "output_config.format", tools)) is not None:
        sampling = sampling.model_copy(update={"structured_outputs": shape})
    return ChatRequest(
        model=str(asked.get("model", "")),
        messages=messages,
        tools=tools or None,
        sampling=read_sampling(sampling, asked.get("max_tokens"), asked.get("stop_sequences")),
        stream=read_flag(asked, "stream"),
        required=required,
        shows_reasoning=thinking.get("type") in ("enabled", "adaptive"),
        begun=begun,
    )


def _messages_of(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise ChatError(f"a message is the user's, the assistant's or the system's, not of {str(role)[:50]!r}")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    given = read_objects(message, "content")
    thoughts = [str(block.get("thinking") or "") for block in given if block.get("type") == "thinking"]
    blocks = [block for block in given if block.get("type") not in ("thinking", "redacted_thinking")]
    for block in blocks:
        if block.get("type") == "tool_result":
            content = block.get("content") or ""
            parts = [_named_tool(part) for part in content] if isinstance(content, list) else content
            result = read_text(parts, "tool_result.content")
            # Templates know no other way to say so.
            told = f"error: {result}" if read_flag(block, "is_error") else result
            yield {"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": told}
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    rest = [block for block in blocks if block.get("type") not in ("tool_use", "tool_result")]
    if rest or calls or not blocks:
        said: dict[str, Any] = {"role": role, "content": read_text(rest, "content")}
        if any(thoughts):
            said["reasoning_content"] = "\n".join(thoughts)
        yield {**said, "tool_calls": calls} if calls else said


def _named_tool(part: Any) -> Any:
    # What a search for tools has found is a name: the model was told of all tools already.
    match part:
        case {"type": "tool_reference", "tool_name": str(name)}:
            return {"type": "text", "text": name}
    return part


def _begun(message: Mapping[str, Any]) -> str:
    text: str = message["content"]
    if "tool_calls" in message or text != text.rstrip():
        why = "a last message of the assistant's is text to continue, without blanks at its end and tools"
        raise ChatError(why, "messages")
    return text


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
    return {"id": str(block.get("id", "")), "type": "function", "function": function}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom") or not isinstance(tool.get("name"), str):
        raise ChatError("only tools with a name and an input_schema can be had here")
    function = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object"}}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


@dataclass(slots=True)
class MessageShape(ConversationShape):
    named: ClassVar[bool] = True
    _text_at: int | None = None  # which block the text is, once it has begun

    def body(self, choices: Choices) -> dict[str, Any]:
        ((said, _),) = choices
        text = [{"type": "text", "text": said.content}] if said.content or not said.tool_calls else []
        return {
            **self._message([*self._thoughts(said.reasoning), *text, *_uses(said)], said.tokens),
            **_ended(said),
        }

    def failed(self, message: str, kind: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": kind, "message": message}}

    def start(self, index: int) -> Iterator[dict[str, Any]]:
        del index
        yield {"type": "message_start", "message": {**self._message([], 0), "stop_reason": None}}

    def _begin(self, reasoning: str | None) -> Iterator[dict[str, Any]]:
        """Show the reasoning, where it is asked for, and begin the text."""
        thoughts = self._thoughts(reasoning)
        for index, thought in enumerate(thoughts):
            yield {"type": "content_block_start", "index": index, "content_block": {**thought, "thinking": ""}}
            delta = {"type": "thinking_delta", "thinking": thought["thinking"]}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        self._text_at = len(thoughts)
        yield {"type": "content_block_start", "index": self._text_at, "content_block": {"type": "text", "text": ""}}

    def more(self, index: int, text: str, reasoning: Reasoning) -> Iterator[dict[str, Any]]:
        del index
        if self._text_at is None:
            yield from self._begin(reasoning())
        yield {"type": "content_block_delta", "index": self._text_at, "delta": {"type": "text_delta", "text": text}}

    def last(self, index: int, said: ModelReply, rest: str, tokens: TokenTexts) -> Iterator[dict[str, Any]]:
        del tokens
        if self._text_at is None:
            yield from self._begin(said.reasoning)
        text_at = self._text_at or 0
        if rest:
            yield from self.more(index, rest, lambda: None)
        yield {"type": "content_block_stop", "index": text_at}
        for place, use in enumerate(_uses(said), text_at + 1):
            yield {"type": "content_block_start", "index": place, "content_block": {**use, "input": {}}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(use["input"])}
            yield {"type": "content_block_delta", "index": place, "delta": delta}
            yield {"type": "content_block_stop", "index": place}
        yield {"type": "message_delta", "delta": _ended(said), "usage": {"output_tokens": said.tokens}}
        yield {"type": "message_stop"}

    def _thoughts(self, reasoning: str | None) -> list[dict[str, Any]]:
        shown = self.asked.shows_reasoning and reasoning
        return [{"type": "thinking", "thinking": reasoning, "signature": ""}] if shown else []

    def _message(self, content: list[dict[str, Any]], drawn: int) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_sequence": None,
            "usage": {"input_tokens": self.prompt_tokens, "output_tokens": drawn},
        }


def _uses(said: ModelReply) -> list[dict[str, Any]]:
    return [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in said.tool_calls]


def _ended(said: ModelReply) -> dict[str, Any]:
    if said.tool_calls:
        reason = "tool_use"
    elif said.stopped_by is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": said.stopped_by}
    else:
        reason = "max_tokens" if said.finish_reason == "length" else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}
