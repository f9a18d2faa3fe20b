"""Messages of OpenAI's shape: as chat templates take them, and compared by what they mean; and tokenizers.

Clients send a history back with small changes that mean nothing: ``content`` that is ``None`` or ``""``, a list of
text parts for a text, arguments of a tool call with other blanks, 1 for 1.0, new ids, no reasoning. Two messages are
the same turn where role, name, text (blanks at its ends aside) and tool calls (names and arguments) are equal.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import xxhash

from schemas.experience import UInt8
from schemas.groups.kept import extended
from trinity_bus.errors import TrinityError

# ``role`` and ``content``; ``tool_calls`` of an assistant's, ``tool_call_id`` and ``name`` of a tool's.
type ChatMessage = Mapping[str, Any]
# A function's name, description and parameters, as OpenAI's ``tools`` have them.
type ToolSchema = Mapping[str, Any]

_EXACT = 1 << 53  # whole numbers below it are the same as floats
_JSON = msgspec.json.Encoder(order="deterministic", enc_hook=str)
# OpenAI's later and earlier names, which chat templates do not know.
_ROLES = {"developer": "system", "function": "tool"}


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that workflows use."""

    chat_template: Any

    @property
    def all_special_ids(self) -> Sequence[int]:
        """Tokens that are marks and no text, such as the end of a turn."""

    @property
    def eos_token_id(self) -> int | None:
        """None where the model has none."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool,
        tokenize: bool,
        return_dict: bool,
        **options: Any,
    ) -> Any:
        """Token ids of a conversation; its text where ``tokenize`` is False."""


class ChatError(TrinityError, ValueError):
    """A conversation that cannot be made into tokens; the message says why, ``param`` which field of its request."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def text_of(message: ChatMessage) -> str:
    """Return the text of a message; raises ChatError for a part that is no text, such as an image."""
    content = message.get("content")
    if content is None:
        # What OpenAI's clients have instead where a model has refused.
        content = message.get("refusal") or ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(_part(part) for part in content)
    raise ChatError(f"content is text or a list of text parts, not {type(content).__name__}")


def _part(part: Any) -> str:
    for name in ("text", "refusal"):
        if isinstance(part, Mapping) and isinstance(part.get(name), str):
            return str(part[name])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise ChatError(f"only parts of text can be prompted with, not {kind!r}")


def calls_of(message: ChatMessage) -> list[tuple[str, Any]]:
    """Return the name and the arguments of each tool call: read, where they are JSON, and as they stand, where not."""
    calls = []
    written = _written_calls(message)
    if not isinstance(written, Sequence):
        raise ChatError(f"tool_calls is a list, not {type(written).__name__}")
    for call in written:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ChatError("a tool call without a function's name")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            # What is no JSON is as it stands.
            with contextlib.suppress(ValueError, RecursionError):
                arguments = json.loads(arguments) if arguments.strip() else {}
        calls.append((function["name"], {} if arguments is None else arguments))
    return calls


def _written_calls(message: ChatMessage) -> Any:
    # ``function_call`` is OpenAI's earlier way to make a single one.
    earlier = message.get("function_call")
    return message.get("tool_calls") or (() if earlier is None else [{"function": earlier}])


def for_template(message: ChatMessage) -> dict[str, Any]:
    """Return a message as chat templates take it: text as one string, arguments of tool calls as mappings."""
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ChatError("a message without a role")
    taken = {name: value for name, value in message.items() if value is not None}
    taken["role"] = _ROLES.get(role, role)
    taken["content"] = text_of(message)
    if isinstance(reasoning := taken.get("reasoning"), str):
        # Its later name, which most templates do not know.
        taken.setdefault("reasoning_content", reasoning)
    if calls := calls_of(message):
        taken["tool_calls"] = [
            {**call, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call, (name, arguments) in zip(_written_calls(message), calls, strict=True)
        ]
    return taken


class Digests:
    """What a history is known by: a digest of its tools, and everything up to each of its messages."""

    def __init__(self, tools: Sequence[ToolSchema] | None) -> None:
        self._hash = xxhash.xxh3_128(canonical(tools or []))

    def with_one_more(self, message: ChatMessage) -> bytes:
        """Return what ``add`` would, and add nothing."""
        following = self._hash.copy()
        following.update(_meaning(message))
        return following.digest()

    def add(self, message: ChatMessage) -> bytes:
        self._hash.update(_meaning(message))
        return self._hash.digest()


def _meaning(message: ChatMessage) -> bytes:
    role = str(message.get("role"))
    calls = calls_of(message) or None
    return canonical((_ROLES.get(role, role), message.get("name"), text_of(message).strip(), calls))


def canonical(value: Any) -> bytes:
    """Return messages, or what is in them, as JSON; raises ChatError for what no text can hold."""
    try:
        return _JSON.encode(_plain(value))
    except (UnicodeEncodeError, RecursionError) as error:
        raise ChatError(f"a message is half a character, or too deep: {error}") from error


def _plain(value: Any) -> Any:
    # To JavaScript's clients 1.0 and 1 are the same number.
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


@dataclass(slots=True)
class Completion:
    """One response of an engine; still empty in parts while it is drawn."""

    token_ids: list[int] = field(default_factory=list)  # [tokens] as drawn, with the end token where one was drawn
    # [tokens] natural logarithm of each token's probability under the distribution that it was drawn from
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = ""  # ``stop`` at an end token or stop string, ``length`` at a limit; empty while it is drawn
    versions: list[tuple[int, int]] = field(default_factory=list)  # (first token, model version): who drew what
    # [prompt + tokens - 1, layers, k] the experts that each MoE layer's router chose, where the engine was asked for
    # them; it never runs the last token
    routes: UInt8 | None = None
    # from which tokens each was drawn (``schemas.groups.kept``), where something limited that and the engine tells it
    kept: bytearray | None = None

    def add(self, more: "Completion") -> None:
        """Take further tokens, with all that is told of each but its version."""
        self.kept = extended(self.kept, len(self.token_ids), more.kept, len(more.token_ids))
        self.token_ids += more.token_ids
        self.logprobs += more.logprobs
