"""Tool calls as Llama 3 writes them.

A turn that is one JSON object, ``{"name": "add", "parameters": {"a": 1}}``, or several with semicolons between them,
with or without ``<|python_tag|>`` before. A turn with text before an object has no calls. Without the tag a JSON object
is a call only where it names a tool that the model may call: any answer in JSON may have a name.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trinity_bus.chat.formats.call import UNREADABLE, Read

_TAG = "<|python_tag|>"


def read_llama(text: str) -> Read:
    before, tagged, rest = text.rpartition(_TAG)
    if not tagged and not text.lstrip().startswith("{"):
        return Read(text)
    read, texts = Read(""), [before]
    rest = rest.strip()
    decoder = json.JSONDecoder()
    at = 0
    while at < len(rest):
        try:
            _, end = decoder.raw_decode(rest, at)
        except UNREADABLE as error:
            if not tagged and not read.calls:
                # An answer that begins with a brace; nothing says that it was to be a call.
                return Read(text)
            read.flaw(rest[at:], f"it is no JSON: {error}")
            texts.append(tagged + rest[at:])
            break
        if not read.add_json(rest[at:end], "parameters"):
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
