"""Tool calls as Mistral writes them: ``[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]``, after the text."""

import json

from trinity_bus.chat.formats.call import UNREADABLE, Read

_MARK = "[TOOL_CALLS]"


def read_mistral(text: str) -> Read:
    content, marked, written = text.partition(_MARK)
    if not marked:
        return Read(text)
    read, texts = Read(content), [content.strip()]
    try:
        calls = json.loads(written)
    except UNREADABLE as error:
        read.flaw(written, f"it is no JSON: {error}")
        return Read(text, flaws=read.flaws)
    each = [json.dumps(call, ensure_ascii=False) for call in (calls if isinstance(calls, list) else [calls])]
    texts += [_MARK + call for call in each if not read.add_json(call)]
    read.content = "".join(texts)
    return read
