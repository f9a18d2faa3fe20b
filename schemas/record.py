"""What every record has in common: a schema name, a major version, and strictness about both.

A record's *schema* is its stable name on the wire (``"task"``); its *version* is a major version. Evolution rules:

* a new field is optional and has a default; an unknown field is ignored: any reader reads any writer of the same
  major version;
* a change that breaks a reader gets a new major version, and readers refuse versions that they do not know.

Nothing here knows how a record becomes bytes; that is ``schemas.codec``.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from schemas.free_form import check_plain

MAX_ID_LENGTH = 200
IDENTIFIER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/@#-]*$"

type Identifier = Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH, pattern=IDENTIFIER_PATTERN)]
"""A name that travels in keys, headers and file names: printable, no blanks, at most 200 characters."""

type Metrics = dict[str, float]
"""Metric name to value. A suffix ``:sum``, ``:max``, ``:min``, ``:last`` or ``:mean`` names the aggregation."""


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
    CARRIES: ClassVar[bool] = False
    """Whether it holds another record that is a large one by itself; see ``schemas.weight``."""
    SENT_ON: ClassVar[bool] = False
    """Whether who reads it writes it again, inside another record or a state."""
    JSON: ClassVar[bool] = False
    """Whether it is accepted as a JSON object too, because people and simple programs write it."""

    def to_wire(self) -> dict[str, Any]:
        """The record as a plain map, schema and version first, absent (``None``) fields left out."""
        return msgspec.to_builtins(self.fields_to_wire())  # type: ignore[no-any-return]  # of a dict, it makes one

    def fields_to_wire(self) -> dict[str, Any]:
        """The same, in which items are still items."""
        return {
            "schema": self.SCHEMA,
            "schema_version": self.VERSION,
            **self.model_dump(mode="python", exclude_none=True),
        }
