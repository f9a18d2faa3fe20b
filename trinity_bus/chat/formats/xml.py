"""Tool calls as Qwen3-Coder and Qwen3.5 write them.

``<tool_call><function=add><parameter=a>1</parameter></function></tool_call>``. A value is JSON where it can be read as
such, and text otherwise: what a parameter is to be is known to the tool.
"""

import json
from typing import Any

from trinity_bus.chat.formats.call import UNREADABLE, Read

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


def read_xml(text: str) -> Read:
    """Read a turn's text. Takes time in proportion to it, whatever it is."""
    content, *blocks = text.split(_CALL)
    read, texts = Read(content), [content]
    for block in blocks:
        written, closed, after = block.partition(_CALL_END)
        function = written.strip()
        name, named, body = function.removeprefix(_FUNCTION).removesuffix(_FUNCTION_END).partition(">")
        if not closed:
            taken = read.flaw(written, f"it is not ended by {_CALL_END}")
        elif not (function.startswith(_FUNCTION) and function.endswith(_FUNCTION_END) and named) or _is_broken(name):
            taken = read.flaw(written, "it is no <function=name>...</function>")
        elif (arguments := _arguments(body)) is None:
            taken = read.flaw(written, "it has something beside <parameter=name>...</parameter>")
        else:
            taken = read.add(name, arguments, written)
        texts.append(after if taken else _CALL + block)
    if blocks:
        read.content = "".join(texts).strip()
    return read


def _arguments(body: str) -> dict[str, Any] | None:
    """Return what parameters are; None where there is something else."""
    found: dict[str, Any] = {}
    at = 0
    while at < len(body):
        if body[at].isspace():
            at += 1
            continue
        begin = at + len(_PARAMETER)
        named = body.find(">", begin)
        end = body.find(_PARAMETER_END, named)
        if not body.startswith(_PARAMETER, at) or named < 0 or end < 0 or _is_broken(body[begin:named]):
            return None
        found[body[begin:named]] = _value(body[named + 1 : end])
        at = end + len(_PARAMETER_END)
    return found


def _is_broken(name: str) -> bool:
    return not name or any(character.isspace() for character in name)


def _value(written: str) -> Any:
    text = written.removeprefix("\n").removesuffix("\n")
    try:
        return json.loads(text)
    except UNREADABLE:
        return text
