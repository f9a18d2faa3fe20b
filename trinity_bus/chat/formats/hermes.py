"""Tool calls as Hermes, Qwen2.5 and Qwen3 write them.

``<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>``, one or several, after the text.
"""

from trinity_bus.chat.formats.call import Read

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def read_hermes(text: str) -> Read:
    content, *blocks = text.split(_OPEN)
    read, texts = Read(content), [content]
    for block in blocks:
        written, closed, after = block.partition(_CLOSE)
        taken = read.add_json(written) if closed else read.flaw(written, f"it is not ended by {_CLOSE}")
        texts.append((after if after.strip() else "") if taken else _OPEN + block)
    if blocks:
        read.content = "".join(texts).strip()
    return read
