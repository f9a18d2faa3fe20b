"""How models write reasoning and tool calls. Read for people and tools; no token is ever made of what is read.

A format is a function from a turn's text to its content and its calls. Which one a model uses is seen in its chat
template. A call that cannot be read is a flaw, in words that the model can be told, and stays in the text.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.sampling import StructuredOutputs
from trinity_bus.chat.messages import ChatError, Tokenizer

MAX_CALLS = 128  # of one turn; the others are a flaw
MAX_FLAWS = 8  # of one turn that are told; a model that has lost its way makes thousands
MAX_SHOWN = 200  # characters of a call that are shown where it cannot be read
UNREADABLE = (ValueError, RecursionError)  # text that is no JSON, or nested too deep
_OPENING_TOKENS = 16  # at the end of a prompt, in which reasoning may be opened
THINK, THOUGHT = "<think>", "</think>"
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_TAG = "<|python_tag|>"
_MARK = "[TOOL_CALLS]"
READ = frozenset({THINK, THOUGHT, _CALL, _CALL_END, _TAG, _MARK})  # marks that are read, special to a tokenizer or not
_CALLED = re.compile(r"\s*<function=([^\s>]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^\s>]+)>(.*?)</parameter>", re.DOTALL)
_BEFORE_OBJECT = re.compile(r"\s*(?=\{)")
_DECODER = json.JSONDecoder()
_NAMED = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")

type Format = Callable[[str], Read]


@dataclass(frozen=True, slots=True)
class ParsedCall:
    name: str
    arguments: dict[str, Any]
    id: str = ""  # which of a session's calls it is; a tool's answer names it


@dataclass(slots=True)
class Read:
    """A turn as it reads."""

    content: str
    calls: list[ParsedCall] = field(default_factory=list)
    flaws: list[str] = field(default_factory=list)  # calls that could not be read, in words for the model
    reasoning: str | None = None

    def add(self, name: Any, arguments: Any, written: str) -> bool:
        """Take a call, its arguments a mapping or JSON of one, or note what is wrong; return whether it is one."""
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments) if arguments.strip() else {}
            except UNREADABLE as error:
                return self.flaw(written, f"its arguments are no JSON: {error}")
        if not isinstance(name, str) or not name:
            return self.flaw(written, "it names no tool")
        if not isinstance(arguments, dict):
            return self.flaw(written, "its arguments are no JSON object")
        if len(self.calls) == MAX_CALLS:
            return self.flaw(written, f"there are more than {MAX_CALLS} calls")
        if (why := _unsendable(name, arguments)) is not None:
            return self.flaw(written, why)
        self.calls.append(ParsedCall(name, arguments))
        return True

    def add_json(self, written: str) -> bool:
        """Take a call that is written as a JSON object with a name and arguments; return whether it is one."""
        try:
            call = json.loads(written)
        except UNREADABLE as error:
            return self.flaw(written, f"it is no JSON: {error}")
        if not isinstance(call, dict):
            return self.flaw(written, "it is no JSON object")
        # Models write the one for the other.
        arguments = call.get("arguments", call.get("parameters"))
        return self.add(call.get("name"), {} if arguments is None else arguments, written)

    def flaw(self, written: str, why: str) -> bool:
        """Note a call that could not be read, which is none: False."""
        if len(self.flaws) < MAX_FLAWS:
            self.flaws.append(f"this tool call could not be read, {why}: {written.strip()[:MAX_SHOWN]!r}")
        return False


def _unsendable(name: str, arguments: dict[str, Any]) -> str | None:
    """Return why a call cannot be written as JSON again; None where it can."""
    try:
        json.dumps([name, arguments], ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "it has half a character"
    except ValueError:
        return "it has a number that JSON has not"
    except RecursionError:
        return "its arguments are nested too deep"
    return None


def split_reasoning(text: str, *, opened: bool) -> tuple[str | None, str]:
    """Return a turn's reasoning, if any, and the rest; ``opened``: its prompt ended in reasoning already."""
    begun = text.lstrip()
    if not opened and not begun.startswith(THINK):
        return None, text
    # Models repeat what the prompt ended in.
    inside = begun.removeprefix(THINK)
    reasoning, closed, rest = inside.partition(THOUGHT)
    return (reasoning.strip(), rest.lstrip("\n")) if closed else (inside.strip(), "")


def without_marks(token_ids: Sequence[int], special: Collection[int]) -> list[int]:
    """Return the tokens of a turn without the marks at its end, which are no text of it."""
    ids = list(token_ids)
    while ids and ids[-1] in special:
        ids.pop()
    return ids


def opens_reasoning(prompt_end: str) -> bool:
    return prompt_end.rstrip().endswith(THINK)


def in_reasoning(tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
    return opens_reasoning(tokenizer.decode(list(prompt[-_OPENING_TOKENS:])))


def read_hermes(text: str) -> Read:
    """As Hermes, Qwen2.5 and Qwen3 write calls, one or several after the text.

    ``<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>``
    """
    return _read_blocks(text, Read.add_json, is_json=True)


def _read_blocks(text: str, take: Callable[[Read, str], bool], *, is_json: bool) -> Read:
    # ``is_json``: whether marks in a call's text are text, and blanks between calls none.
    at = text.find(_CALL)
    read, texts = Read(text), [text[:at]]
    while at >= 0:
        begin = at + len(_CALL)
        # Each that is broken costs a count of the lines before it.
        inside = _end_of_object(text, begin) if is_json and len(texts) <= MAX_CALLS else begin
        following = text.find(_CALL, inside)
        block = text[begin:following] if following >= 0 else text[begin:]
        end = block.find(_CALL_END, inside - begin)
        written, after = (block[:end], block[end + len(_CALL_END) :]) if end >= 0 else (block, "")
        taken = take(read, written) if end >= 0 else read.flaw(written, f"it is not ended by {_CALL_END}")
        told = after if after.strip() or not is_json else ""
        texts.append(told if taken else _CALL + block)
        at = following
    if len(texts) > 1:
        read.content = "".join(texts).strip()
    return read


def _end_of_object(text: str, at: int) -> int:
    """Return where an object of JSON ends that begins there, after blanks; ``at`` where there is none."""
    begin = _BEFORE_OBJECT.match(text, at)
    try:
        return at if begin is None else _DECODER.raw_decode(text, begin.end())[1]
    except UNREADABLE:
        return at


def read_llama(text: str) -> Read:
    """As Llama 3 writes calls: ``{"name": "add", "parameters": {"a": 1}}``, or several with semicolons between them.

    With or without ``<|python_tag|>`` before. A turn with text before an object has no calls. Without the tag a JSON
    object is a call only where it names a tool that the model may call: any answer in JSON may have a name.
    """
    before, tagged, rest = text.rpartition(_TAG)
    if not tagged and not text.lstrip().startswith("{"):
        return Read(text)
    read, texts = Read(""), [before]
    rest = rest.strip()
    at = 0
    while at < len(rest):
        try:
            _, end = _DECODER.raw_decode(rest, at)
        except UNREADABLE as error:
            if not tagged and not read.calls:
                # An answer that begins with a brace; nothing says that it was to be a call.
                return Read(text)
            read.flaw(rest[at:], f"it is no JSON: {error}")
            texts.append(tagged + rest[at:])
            break
        if not read.add_json(rest[at:end]):
            texts.append(tagged + rest[at:end])
        at = end
        while at < len(rest) and rest[at] in "; \n":
            at += 1
    if read.flaws and not read.calls and not tagged:
        # JSON that is no call, such as an answer that was asked for as JSON.
        return Read(text)
    read.content = "".join(texts).strip()
    return read


def calls_only_by_name(read: Read, text: str, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all calls of a turn without the tag are of tools that the model may call."""
    offered = {tool.get("function", tool).get("name") for tool in tools}
    return _TAG in text or all(call.name in offered for call in read.calls)


def read_mistral(text: str) -> Read:
    """As Mistral writes calls, after the text: ``[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]``.

    Its later models write ``[TOOL_CALLS]add[ARGS]{"a": 1}``, with or without the mark between, once for each.
    """
    content, *blocks = text.split(_MARK)
    if not blocks:
        return Read(text)
    read, texts = Read(content), [content.strip()]
    for block in blocks:
        if (named := _NAMED.match(block)) is not None:
            texts += [] if read.add(named[1], block[named.end() :], block) else [_MARK + block]
            continue
        try:
            calls = json.loads(block)
        except UNREADABLE as error:
            read.flaw(block, f"it is no JSON: {error}")
            texts.append(_MARK + block)
            continue
        each = [json.dumps(call, ensure_ascii=False) for call in (calls if isinstance(calls, list) else [calls])]
        texts += [_MARK + call for call in each if not read.add_json(call)]
    read.content = "".join(texts)
    return read


def read_xml(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> Read:
    """As Qwen3-Coder and Qwen3.5 write calls. Takes time in proportion to the text, whatever it is.

    ``<tool_call><function=add><parameter=a>1</parameter></function></tool_call>``; they leave out the outer tags, too.
    A value is text where a tool says that it is a string; otherwise it is JSON where it can be read as such.
    """
    content, *functions = text.split(_FUNCTION)
    if _CALL not in text and all(_FUNCTION_END in one for one in functions):
        for one in functions:
            written, _, after = one.partition(_FUNCTION_END)
            inside = f"{_CALL}{_FUNCTION}{written}{_FUNCTION_END}{_CALL_END}"
            content += inside + (after.lstrip().removeprefix(_CALL_END) if _CALL_END in after else after)
        text = content
    strings = {pair for tool in tools for pair in _strings(tool.get("function", tool))}
    return _read_blocks(text, lambda read, written: _add_xml(read, written, strings), is_json=False)


def _strings(function: Any) -> Iterator[tuple[str, str]]:
    """Yield the function's name with each of its parameters that are text, whatever it looks like."""
    try:
        for name, schema in function["parameters"]["properties"].items():
            kinds = schema.get("type") or [one.get("type") for one in schema.get("anyOf", ())]
            if kinds == "string" or [kind for kind in kinds if kind != "null"] == ["string"]:
                yield str(function["name"]), name
    except (LookupError, TypeError, AttributeError):
        # What a client calls a schema may be anything.
        return


def _add_xml(read: Read, written: str, strings: Collection[tuple[str, str]]) -> bool:
    if (called := _CALLED.fullmatch(written)) is None:
        return read.flaw(written, "it is no <function=name>...</function>")
    name, body = called.groups()
    arguments, at = dict[str, Any](), 0
    while (given := _PARAMETER.match(body, at)) is not None:
        arguments[given[1]] = _value(given[2], is_text=(name, given[1]) in strings)
        at = given.end()
    if body[at:].strip():
        return read.flaw(written, "it has something beside <parameter=name>...</parameter>")
    return read.add(name, arguments, written)


def _value(written: str, *, is_text: bool) -> Any:
    text = written.removeprefix("\n").removesuffix("\n")
    try:
        return text if is_text and text != "null" else json.loads(text)
    except UNREADABLE:
        return text


def read_plain(text: str) -> Read:
    return Read(text)


# What is in a chat template, and which format that means; the first that fits.
_MARKS: tuple[tuple[str, Format], ...] = (
    ("<function=", read_xml),
    ("<tool_call>", read_hermes),
    ("[TOOL_CALLS]", read_mistral),
    ("<|python_tag|>", read_llama),
    ("ipython", read_llama),
)


def format_of(chat_template: str) -> Format:
    return next((reader for mark, reader in _MARKS if mark in chat_template), read_plain)


def required_call(chat_template: str, functions: Sequence[Mapping[str, Any]], *, opened: bool) -> StructuredOutputs:
    """Return what an answer has to look like that must call one of these functions, for vLLM's structural tags.

    Reasoning, unless the model has none or the prompt has ended in it (``opened``), then one call, then the end.
    ChatError: the model speaks otherwise than ``read_...`` of its format reads, and cannot be told so.
    """
    call: dict[str, Any] = {"type": "or", "elements": [_tag(chat_template, one) for one in functions]}
    begin = "" if opened else THINK
    thought = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": f"{THOUGHT}\n\n"}
    thinking = {"type": "sequence", "elements": [thought, call]}
    if opened:
        call = thinking
    elif THINK in chat_template:
        call = {"type": "or", "elements": [call, thinking]}
    return StructuredOutputs(structural_tag=json.dumps({"type": "structural_tag", "format": call}))


def _tag(chat_template: str, function: Mapping[str, Any]) -> dict[str, Any]:
    name, read = json.dumps(function["name"]), format_of(chat_template)
    content: dict[str, Any] = {"type": "json_schema", "json_schema": function.get("parameters") or {"type": "object"}}
    if read is read_hermes:
        begin, end = f'<tool_call>\n{{"name": {name}, "arguments": ', "}\n</tool_call>"
    elif read is read_llama:
        begin, end = f'{{"name": {name}, "parameters": ', "}"
    elif read is read_xml:
        begin, end = f"<tool_call>\n<function={function['name']}>\n", "\n</function>\n</tool_call>"
        content["style"] = "qwen_xml"
    else:
        raise ChatError("a call cannot be required of this model, whose chat template writes none that is known")
    return {"type": "tag", "begin": begin, "content": content, "end": end}
