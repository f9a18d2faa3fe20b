"""Free-form data, such as a task's ``data``: what it may hold, and the limits on the shape of any record."""

from typing import Any

from schemas.errors import shown

MAX_ITEMS = 65_536
"""Entries of one array or map; so a batch has at most this many tasks."""
MAX_CONTAINERS = 4 * MAX_ITEMS
"""Arrays and maps in one record: a bound on what a small message can make a reader allocate."""
MAX_DEPTH = 32
"""Levels of nesting in free-form values."""


def check_plain(value: Any) -> Any:
    """``value``, if it is plain data that msgpack and JSON both can hold.

    Plain are ``None``, booleans, 64-bit integers, floats, strings, and lists and string-keyed dicts of these, nested at
    most ``MAX_DEPTH`` deep. A list or dict has at most ``MAX_ITEMS`` entries, and there are at most half as many lists
    and dicts as a record may have: what is accepted here can be sent on inside another record.

    Raises:
        ValueError: It is not; the message names the place.
    """
    if not value and isinstance(value, dict | list):
        # What most tasks have.
        return value
    containers = 0
    pending: list[tuple[str, Any, int]] = [("", value, 1)]
    while pending:
        path, item, depth = pending.pop()
        if isinstance(item, dict | list):
            containers += 1
            if containers > MAX_CONTAINERS // 2:
                raise ValueError(f"more than {MAX_CONTAINERS // 2} lists and dicts")
            pending.extend((f"{path}{step}", child, depth + 1) for step, child in _children(path, item, depth))
        else:
            _check_scalar(path, item)
    return value


def _children(path: str, container: dict[Any, Any] | list[Any], depth: int) -> list[tuple[str, Any]]:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if len(container) > MAX_ITEMS:
        raise ValueError(f"{path or 'it'} has {len(container)} entries, at most {MAX_ITEMS} are allowed")
    if isinstance(container, list):
        return [(f"[{i}]", child) for i, child in enumerate(container)]
    for key in container:
        if not isinstance(key, str):
            # A ValueError even for a wrong type, because that is what pydantic turns into its own.
            raise ValueError(f"the key {shown(key)} in {path or 'it'} is not a string")  # noqa: TRY004 - see above
    return [(f".{shown(key)[1:-1]}", child) for key, child in container.items()]


def _check_scalar(path: str, value: object) -> None:
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise ValueError(f"{path} is an integer of more than 64 bits")
    elif value is not None and not isinstance(value, str | float):
        raise ValueError(f"{path} = {shown(value)} is a {type(value).__name__}, not plain data")
