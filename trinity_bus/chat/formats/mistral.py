"""Tool calls as Mistral writes them: ``[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]``, after the text."""

import json

from trinity_bus.chat.formats.call import UNREADABLE, Read

_MARK = "[TOOL_CALLS]"


def read_mistral(text: str) -> Read:
    """Read a turn's text."""
    content, marked, written = text.partition(_MARK)
    if not marked:
        return Read(text)
    read = Read(content.strip())
    try:
        calls = json.loads(written)
    except UNREADABLE as error:
        read.flaw(written, f"it is no JSON: {error}")
        return read
    for call in calls if isinstance(calls, list) else [calls]:
        if isinstance(call, dict):
            read.add(call.get("name"), call.get("arguments", {}), written)
        else:
            read.flaw(written, "it is no JSON object")
    return read
