"""How models write reasoning and tool calls. Read for people and tools; no token is ever made of what is read.

A format is a file with one function, from a turn's text to its content and its calls. Which one a model uses is seen in
its chat template. A call that cannot be read is a flaw, in words that the model can be told, and stays in the text.
"""

from collections.abc import Callable

from trinity_bus.chat.formats.call import ParsedCall, Read, split_reasoning
from trinity_bus.chat.formats.hermes import read_hermes
from trinity_bus.chat.formats.llama import calls_only_by_name, read_llama
from trinity_bus.chat.formats.mistral import read_mistral
from trinity_bus.chat.formats.xml import read_xml

type Format = Callable[[str], Read]

# What is in a chat template, and which format that means; the first that fits.
_MARKS: tuple[tuple[str, Format], ...] = (
    ("<function=", read_xml),
    ("<tool_call>", read_hermes),
    ("[TOOL_CALLS]", read_mistral),
    ("<|python_tag|>", read_llama),
    ("ipython", read_llama),
)


def read_plain(text: str) -> Read:
    return Read(text)


def format_of(chat_template: str) -> Format:
    return next((reader for mark, reader in _MARKS if mark in chat_template), read_plain)


__all__ = [
    "Format",
    "ParsedCall",
    "Read",
    "calls_only_by_name",
    "format_of",
    "read_hermes",
    "read_llama",
    "read_mistral",
    "read_plain",
    "read_xml",
    "split_reasoning",
]
