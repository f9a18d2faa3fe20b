"""What is wrong with a record's fields, in one line: for who makes one in a program, and for who reads one."""

import difflib
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from schemas.errors import shown

_EXTRA = "extra_forbidden"


def fault(cls: type[BaseModel], error: ValidationError, data: dict[str, Any]) -> tuple[str, str]:
    """Return a word for machines (see ``docs/schemas.md``) and a line for people, of the first thing that is wrong."""
    # ``cls`` may have ``KNOWN_AS``, where one of its fields has another name elsewhere; ``data``: fields as given.
    first = error.errors(include_url=False, include_context=False)[0]
    loc, kind = first["loc"], first["type"]
    field = ".".join(map(str, loc)) or "record"
    if kind == _EXTRA:
        return "unknown_field", f"there is no field {field}; {_meant(_owner(cls, loc), str(loc[-1]))}"
    # What has a default that no reader takes, such as the id that a program need not give, is missing all the same.
    if kind == "missing" or (len(loc) == 1 and loc[0] not in data):
        return "missing_field", f"{field} is missing"
    return (
        "wrong_type" if kind.endswith("_type") else "bad_value",
        f"{field} = {shown(first['input'])}: {first['msg']}",
    )


def _meant(cls: type[BaseModel], name: str) -> str:
    elsewhere = getattr(cls, "KNOWN_AS", {}).get(name)
    close = [elsewhere] if elsewhere else difflib.get_close_matches(name, cls.model_fields, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(cls.model_fields)}"


def _owner(cls: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel]:
    # The type of what a field lies in.
    for part in loc[:-1]:
        if isinstance(part, str) and part in cls.model_fields:
            cls = _model_in(cls.model_fields[part].annotation) or cls
    return cls


def _model_in(annotation: Any) -> type[BaseModel] | None:
    # The record in ``Record | None`` or ``list[Record]``.
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)
