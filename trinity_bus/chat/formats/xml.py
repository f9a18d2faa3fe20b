"""Tool calls as Qwen3-Coder and Qwen3.5 write them.

``<tool_call><function=add><parameter=a>1</parameter></function></tool_call>``. A value is JSON where it can be read as
such, and text otherwise: what a parameter is to be is known to the tool.
"""

import json
import re
from typing import Any

from trinity_bus.chat.formats.call import Read

_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>(.*?)</parameter>\s*", re.DOTALL)


def read_xml(text: str) -> Read:
    """Read a turn's text."""
    calls = list(_CALL.finditer(text))
    read = Read(_CALL.sub("", text).strip() if calls else text)
    for call in calls:
        written, closed = call[1], call[2]
        function = _FUNCTION.fullmatch(written)
        if not closed:
            read.flaw(written, "it is not ended by </tool_call>")
        elif function is None:
            read.flaw(written, "it is no <function=name>...</function>")
        elif _PARAMETER.sub("", function[2]).strip():
            read.flaw(written, "it has something beside <parameter=name>...</parameter>")
        else:
            arguments = {match[1]: _value(match[2]) for match in _PARAMETER.finditer(function[2])}
            read.add(function[1], arguments, written)
    return read


def _value(written: str) -> Any:
    text = written.removeprefix("\n").removesuffix("\n")
    try:
        return json.loads(text)
    except ValueError:
        return text
