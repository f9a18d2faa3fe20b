"""Tasks and examples from lines of JSON: what a file of them is, wherever one is read. Pure.

Examples may be as TRL has them, too: a ``completion``, a ``prompt`` that is a conversation, ``chosen`` and ``rejected``
that are, or that begin with the prompt.

Failures: a line that is no such record, has a name twice, or repeats the id of an earlier one, is a :class:`BadLine` in
its place; the lines after it are read all the same. Blank lines are passed over, and a mark of byte order.
"""

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemas.codec import decode
from schemas.errors import DecodeError, RecordError
from schemas.examples import Demonstration, Preference
from schemas.message import in_one_shape
from schemas.task import Task

_FRAME = {"schema", "schema_version"}  # What a record may say of itself beside its fields


@dataclass(frozen=True, slots=True)
class BadLine:
    number: int  # From 1
    reason: str


def parse[R: Task | Demonstration | Preference](
    lines: Iterable[bytes], kind: type[R], *, name: str | None = None
) -> Iterator[tuple[int, R] | BadLine]:
    """Return records and bad lines with their line numbers.

    ``name`` is of the file: a line without an id gets one of this and its number. None: each has to have its own.
    """
    id_field = "task_id" if kind is Task else "example_id"
    seen: dict[str, int] = {}
    for number, written in enumerate(lines, 1):
        line = written.removeprefix(codecs.BOM_UTF8) if number == 1 else written
        if not line.strip():
            continue
        try:
            record = _record(line, kind, {} if name is None else {id_field: f"{name}:{number}"})
        except DecodeError as error:
            yield BadLine(number, f"{error.reason}: {error.detail}")
            continue
        except RecordError as error:
            yield BadLine(number, f"unknown_field: {error}")
            continue
        except (ValueError, RecursionError) as error:
            yield BadLine(number, f"bad_line: {error}")
            continue
        own_id = getattr(record, id_field)
        first = seen.setdefault(own_id, number)
        if first != number:
            yield BadLine(number, f"duplicate_id: {id_field} {own_id!r} is that of line {first} too")
            continue
        yield number, record


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Raises ValueError where it has a name twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {max(names, key=names.count)!r} is there twice")
    return found


def _record[R: Task | Demonstration | Preference](line: bytes, kind: type[R], otherwise: Mapping[str, Any]) -> R:
    # The record of a line. RecordError: a field is misspelt, and whoever wrote it would lose what it says
    try:
        written = json.loads(line, object_pairs_hook=distinct)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        decode(line.strip(), kind)  # which says better what is wrong, but of msgpack
        raise
    if not isinstance(written, dict):
        return decode(line.strip(), kind)
    fields = _completed({**otherwise, **written}, kind)
    try:
        fields = in_one_shape(fields)
    except ValueError as error:
        raise DecodeError("bad_value", f"messages or tools cannot be read: {error}") from error
    if fields != written:
        line = json.dumps(fields, ensure_ascii=False).encode(errors="surrogatepass")
    record = decode(line.strip(), kind)
    kind(**{name: value for name, value in fields.items() if name not in _FRAME})
    return record


def _completed(given: Mapping[str, Any], kind: type) -> dict[str, Any]:
    # The fields of a line in this project's shape; ValueError: TRL's, and no example
    fields = dict(given)
    told = {name: fields[name] for name in _TRL.get(kind, ()) if name in fields}
    prompt = told.pop("prompt", None)
    if "completion" in told:
        if "response" in fields:
            raise ValueError("it has both completion and response")
        told = {"response": fields.pop("completion")}
    conversations = all(isinstance(told.get(name), list) for name in ("chosen", "rejected"))
    if conversations and not isinstance(prompt, list):
        # Both have the whole conversation, whatever else is called the prompt.
        pairs = enumerate(zip(told["chosen"], told["rejected"], strict=False))
        prompt = told["chosen"][: next((i for i, (one, other) in pairs if one != other), None)]
        told = {name: answer[len(prompt) :] for name, answer in told.items()}
    if isinstance(prompt, list):
        fields.pop("prompt", None)
        fields |= _conversation(prompt, told)
    elif "response" in told:
        fields |= told
    return fields


# Fields of https://huggingface.co/docs/trl/dataset_formats that have another shape here, or other names
_TRL: Final[Mapping[type, tuple[str, ...]]] = {
    Demonstration: ("prompt", "completion"),
    Preference: ("prompt", "chosen", "rejected"),
}


def _conversation(prompt: list[Any], answers: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"messages": prompt}
    for name, answer in answers.items():
        match [_given(one) for one in answer] if isinstance(answer, list) else answer:
            case [{"role": "assistant", "content": str(text), **other}] if not other:
                fields[name] = text
            case [_, *_] if name == "response" and not any(_given(one).get("role") == "assistant" for one in prompt):
                fields["messages"] = prompt + answer
            case str():
                fields[name] = answer
            case _:
                raise ValueError(f"{_SAID.get(name, name)} is not one message of an assistant, with text alone")
    return fields


_SAID: Final = {"response": "completion"}


def _given(message: Any) -> dict[str, Any]:
    # What a message has: columns give all the same fields
    return {key: value for key, value in message.items() if value is not None} if isinstance(message, dict) else {}
