"""Tool calls as Hermes, Qwen2.5 and Qwen3 write them.

``<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>``, one or several, after the text.
"""

from trinity_bus.chat.formats.call import Read

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def read_hermes(text: str) -> Read:
    """Read a turn's text."""
    content, *blocks = text.split(_OPEN)
    read = Read(content.rstrip() if blocks else content)
    for block in blocks:
        written, closed, after = block.partition(_CLOSE)
        if not closed:
            read.flaw(written, f"it is not ended by {_CLOSE}")
        else:
            read.add_json(written)
        read.content += after.rstrip("\n") if not after.strip() else after
    if blocks:
        read.content = read.content.strip()
    return read
