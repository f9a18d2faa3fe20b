"""Free-form data, such as a task's ``data``: what it may hold, and the limits on the shape of any record."""

from collections.abc import Collection, Iterable
from typing import Any

from schemas.errors import shown

MAX_ITEMS = 65_536  # entries of one array or map; so a batch has at most this many tasks
# Values in one record: what a reader builds of it and looks at in less than 100 ms. A manifest's entries, and other
# lists of ``schemas.fields.items``, are no values in this sense.
MAX_VALUES = 131_072
MAX_CONTAINERS = 32_768  # arrays and maps among them
MAX_DEPTH = 32  # levels of nesting in free-form values

_SCALARS = frozenset({str, float, bool, type(None)})
_PLAIN = _SCALARS | {int, dict, list}


def check_plain(value: Any) -> Any:
    """``value``, if it is plain data that msgpack and JSON both can hold.

    Plain are ``None``, booleans, 64-bit integers, floats, strings, and lists and string-keyed dicts of these, nested at
    most ``MAX_DEPTH`` deep. A list or dict has at most ``MAX_ITEMS`` entries, and there are at most half as many
    values, lists and dicts as a record may have: what is accepted here can be sent on inside another record.

    Raises:
        ValueError: It is not; the message names the place.
    """
    if not value and isinstance(value, dict | list):
        # What most tasks have.
        return value
    values = containers = depth = 0
    level: list[Any] = [value]
    while level:
        depth += 1
        containers += len(level)
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        if containers > MAX_CONTAINERS // 2:
            raise ValueError(f"more than {MAX_CONTAINERS // 2} lists and dicts")
        below: list[Any] = []
        for container in level:
            values += len(container)
            if values > MAX_VALUES // 2 or len(container) > MAX_ITEMS:
                raise ValueError(f"more than {MAX_VALUES // 2} values, or {MAX_ITEMS} in one list or dict")
            if not _take(container, below):
                place, problem = _problem(value) or ("", "is not plain data")
                raise ValueError(f"{place or 'it'} {problem}")
        level = below
    return value


def _take(container: Any, below: list[Any]) -> bool:
    # Add the lists and dicts of a container to ``below``; whether the rest of it is plain.
    children: Collection[Any] = container
    if isinstance(container, dict):
        if not (set(map(type, container)) <= {str} or all(isinstance(key, str) for key in container)):
            return False
        children = container.values()
    kinds = set(map(type, children))
    if kinds <= _SCALARS:
        return True
    if not kinds <= _PLAIN:
        # Of a type that derives from a plain one: rare enough to look at each.
        return all(_is_plain(child, below) for child in children)
    if int in kinds and not all(_fits(child) for child in children if type(child) is int):
        return False
    if dict in kinds or list in kinds:
        below.extend(child for child in children if type(child) is dict or type(child) is list)
    return True


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**64


def _is_plain(value: Any, below: list[Any]) -> bool:
    if isinstance(value, dict | list):
        below.append(value)
        return True
    return value is None or isinstance(value, str | float) or (isinstance(value, int) and _fits(value))


def _problem(value: Any, depth: int = 1) -> tuple[str, str] | None:
    # Where the first thing lies that is not plain, and what is wrong with it. Only here are places put into words.
    steps: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return "", f"has the key {shown(key)}, which is not a string"
        steps = value.items()
    else:
        steps = enumerate(value)
    for step, child in steps:
        found: tuple[str, str] | None = None
        if isinstance(child, dict | list):
            found = _problem(child, depth + 1) if depth < MAX_DEPTH else None
        elif isinstance(child, int) and not _fits(child):
            found = "", "is an integer of more than 64 bits"
        elif child is not None and not isinstance(child, str | float | int):
            found = "", f"= {shown(child)} is a {type(child).__name__}, not plain data"
        if found is not None:
            return f"{_step(step)}{found[0]}", found[1]
    return None


def _step(step: Any) -> str:
    return f".{shown(step)[1:-1]}" if isinstance(step, str) else f"[{step}]"
