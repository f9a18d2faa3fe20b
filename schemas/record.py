"""What every record has in common: a schema name, a major version, and strictness about both.

A record's *schema* is its stable name on the wire (``"task"``); its *version* is a major version. Evolution rules:

* a new field is optional and has a default; an unknown field is ignored: any reader reads any writer of the same
  major version;
* a change that breaks a reader gets a new major version, and readers refuse versions that they do not know.

Nothing here knows how a record becomes bytes; that is ``schemas.codec``.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from schemas.errors import shown

MAX_ID_LENGTH = 200
MAX_ITEMS = 65_536
"""Entries of one array or map; so a batch has at most this many tasks."""
MAX_CONTAINERS = 4 * MAX_ITEMS
"""Arrays and maps in one record: a bound on what a small message can make a reader allocate."""
MAX_DEPTH = 32
"""Levels of nesting in free-form values."""

type Identifier = Annotated[
    str, Field(min_length=1, max_length=MAX_ID_LENGTH, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@#-]*$")
]
"""A name that travels in keys, headers and file names: printable, no blanks, at most 200 characters."""

type Metrics = dict[str, float]
"""Metric name to value. A suffix ``:sum``, ``:max``, ``:min``, ``:last`` or ``:mean`` names the aggregation."""


def check_plain(value: Any) -> Any:
    """``value``, if it is plain data that msgpack and JSON both can hold.

    Plain are ``None``, booleans, 64-bit integers, floats, strings, and lists and string-keyed dicts of these, nested at
    most ``MAX_DEPTH`` deep.

    Raises:
        ValueError: It is not; the message names the place.
    """
    pending: list[tuple[str, Any, int]] = [("", value, 1)]
    while pending:
        path, item, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(item, dict):
            for key, child in item.items():
                if not isinstance(key, str):
                    raise ValueError(f"the key {shown(key)} in {path or 'it'} is not a string")  # noqa: TRY004 - pydantic wants ValueError
                pending.append((f"{path}.{shown(key)[1:-1]}", child, depth + 1))
        elif isinstance(item, list):
            pending.extend((f"{path}[{i}]", child, depth + 1) for i, child in enumerate(item))
        elif isinstance(item, int):
            if not -(2**63) <= item < 2**64:
                raise ValueError(f"{path} is an integer of more than 64 bits")
        elif item is not None and not isinstance(item, str | float):
            raise ValueError(f"{path} = {shown(item)} is a {type(item).__name__}, not plain data")
    return value


type PlainMap = Annotated[dict[str, Any], AfterValidator(check_plain)]
"""A string-keyed map of plain data."""

type BatchType = Literal["train", "eval"]


class Record(BaseModel):
    """Base of all records. Subclasses set ``SCHEMA``, and ``VERSION`` and ``MAX_BYTES`` where they differ."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")

    SCHEMA: ClassVar[str]
    VERSION: ClassVar[int] = 1
    MAX_BYTES: ClassVar[int] = 1 << 20
    """Size limit of one encoded record."""

    def to_wire(self) -> dict[str, Any]:
        """The record as a plain map, schema and version first, absent (``None``) fields left out."""
        return {
            "schema": self.SCHEMA,
            "schema_version": self.VERSION,
            **self.model_dump(mode="python", exclude_none=True),
        }
