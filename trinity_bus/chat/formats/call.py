"""What formats have in common: a call, what was read of a turn, and where reasoning ends."""

import json
from dataclasses import dataclass, field
from typing import Any

MAX_CALLS = 128  # of one turn; the others are a flaw
MAX_FLAWS = 8  # of one turn that are told; a model that has lost its way makes thousands
MAX_SHOWN = 200  # characters of a call that are shown where it cannot be read
UNREADABLE = (ValueError, RecursionError)  # text that is no JSON, or nested too deep
OPENING_TOKENS = 16  # at the end of a prompt, in which reasoning may be opened
_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ParsedCall:
    name: str
    arguments: dict[str, Any]
    id: str = ""  # which of a session's calls it is; a tool's answer names it


@dataclass(slots=True)
class Read:
    content: str
    calls: list[ParsedCall] = field(default_factory=list)
    flaws: list[str] = field(default_factory=list)  # calls that could not be read, in words for the model

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

    def add_json(self, written: str, arguments_key: str = "arguments") -> bool:
        """Take a call that is written as a JSON object with a name and arguments; return whether it is one."""
        try:
            call = json.loads(written)
        except UNREADABLE as error:
            return self.flaw(written, f"it is no JSON: {error}")
        if not isinstance(call, dict):
            return self.flaw(written, "it is no JSON object")
        return self.add(call.get("name"), call.get(arguments_key, call.get("arguments", {})), written)

    def flaw(self, written: str, why: str) -> bool:
        """Note a call that could not be read, which is none: False."""
        if len(self.flaws) < MAX_FLAWS:
            self.flaws.append(f"this tool call could not be read, {why}: {written.strip()[:MAX_SHOWN]!r}")
        return False


def _unsendable(name: str, arguments: dict[str, Any]) -> str | None:
    """Return why a call cannot be written as JSON again; None where it can."""
    try:
        json.dumps([name, arguments], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "it has half a character"
    except RecursionError:
        return "its arguments are nested too deep"
    return None


def split_reasoning(text: str, *, opened: bool) -> tuple[str | None, str]:
    """Return a turn's reasoning, if any, and the rest; ``opened``: its prompt ended in reasoning already."""
    begun = text.lstrip()
    if not opened and not begun.startswith(_OPEN):
        return None, text
    inside = text if opened else begun.removeprefix(_OPEN)
    reasoning, closed, rest = inside.partition(_CLOSE)
    return (reasoning.strip(), rest.lstrip("\n")) if closed else (inside.strip(), "")


def opens_reasoning(prompt_end: str) -> bool:
    return prompt_end.rstrip().endswith(_OPEN)
