"""What every record has in common: a schema name, a major version, and strictness about both.

A record's *schema* is its stable name on the wire (``"task"``); its *version* is a major version. Evolution rules:

* a new field is optional and has a default; an unknown field is ignored: any reader reads any writer of the same
  major version;
* a program that makes a record may name only fields that there are: one that is misspelt is an error, not a default;
* a change that breaks a reader gets a new major version, and readers refuse versions that they do not know.

Nothing here knows how a record becomes bytes; that is ``schemas.codec``.
"""

import difflib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from schemas.errors import RecordError, shown
from schemas.fields.free_form import check_plain

MAX_ID_LENGTH = 200
IDENTIFIER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/@#-]*$"

# Ranges of numbers: a reader adds counts up, compares versions with those of tokens, and shows times as dates. What no
# honest writer can mean is refused where it is read.
MAX_COUNT = 2**63 - 1  # of whatever is counted: what fits into a signed integer of 64 bits, as Kafka's offsets do
MAX_VERSION = 2**31 - 1  # 32 bits are what experiences have for it
MAX_SECONDS = 1e9  # of a duration: 31 years
MAX_MIB = 1e9  # of memory
MAX_TIME_S = 253_402_300_799  # of a time since the Unix epoch: the end of the year 9999, which is where dates end

type Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
type Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
type Version = Annotated[int, Field(ge=0, le=MAX_VERSION)]  # a model version; also a step, which makes one
type VersionOrNone = Annotated[int, Field(ge=-1, le=MAX_VERSION)]  # -1 stands for no version
type Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
type Time = Annotated[float, Field(ge=0, le=MAX_TIME_S, allow_inf_nan=False)]  # since the Unix epoch
type Port = Annotated[int, Field(ge=0, le=65_535)]

# a name that travels in keys, headers and file names: printable, no blanks
type Identifier = Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH, pattern=IDENTIFIER_PATTERN)]

# metric name to value; a suffix ``:sum``, ``:max``, ``:min``, ``:last`` or ``:mean`` names the aggregation
type Metrics = dict[str, float]


type PlainMap = Annotated[dict[str, Any], AfterValidator(check_plain)]

type BatchType = Literal["train", "eval"]


class Record(BaseModel):
    """Base of all records. Subclasses set ``SCHEMA``, and ``VERSION`` and ``MAX_BYTES`` where they differ."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")

    SCHEMA: ClassVar[str]
    VERSION: ClassVar[int] = 1
    MAX_BYTES: ClassVar[int] = 1 << 20  # of one encoded record
    # whether it holds another record that is a large one by itself; see ``schemas.fields.memory_estimate``
    CARRIES: ClassVar[bool] = False
    SENT_ON: ClassVar[bool] = False  # whether who reads it writes it again, inside another record or a state
    # whether it is accepted as a JSON object too, because people and simple programs write it
    JSON: ClassVar[bool] = False

    # what some of its fields are called elsewhere, for who uses these names here
    KNOWN_AS: ClassVar[Mapping[str, str]] = {}
    # fields that a program may leave out when it makes one, and what stands there then; on the wire they must be
    FILLED: ClassVar[Mapping[str, Callable[[], Any]]] = {}

    if not TYPE_CHECKING:  # type checkers make the signature from the fields

        def __init__(self, /, **fields: Any) -> None:
            """Make a record of what a program gives; raises RecordError."""
            for name, fill in self.FILLED.items():
                if name not in fields:
                    fields[name] = fill()
            try:
                self.__pydantic_validator__.validate_python(fields, self_instance=self, extra="forbid")
            except ValidationError as error:
                raise RecordError(f"{self.SCHEMA}: {fault(type(self), error, fields)[1]}") from None

        # Records that are read do not come through here: readers pass over what they do not know.
        __init__.__pydantic_base_init__ = True

    def given(self) -> dict[str, Any]:
        # The fields that are there, as they are: pydantic would look at each of them once more.
        return {name: value for name, value in self.__dict__.items() if value is not None}


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


MAX_REASON_CHARS = 500
MAX_PERSON_CHARS = 100
MAX_SKIPPED = 64  # batches that a lineage names: the last ones


# Who asked for something, as the program says that they used. Whoever may write the command may say any name.
type Person = Annotated[str, Field(min_length=1, max_length=MAX_PERSON_CHARS)]


class SkippedBatch(Record):
    """A batch that was passed over. It took its step, which changed no weights."""

    SCHEMA: ClassVar[str] = "skipped_batch"

    batch_id: Identifier
    step: Annotated[int, Field(ge=1, le=MAX_VERSION)]
    """The step that it took; its sequence."""
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS)]


class Rollback(Record):
    """The versions after one were discarded: training went on from it, without the batches that the others had."""

    SCHEMA: ClassVar[str] = "rollback"

    to: Version
    """The version that training went back to."""
    through: Count
    """Sequence of the last batch that is passed over, which is the newest that was FINALIZED then."""
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS)] = ""
    asked_by: Person | None = None


type SkippedBatches = Annotated[list[SkippedBatch], Field(max_length=MAX_SKIPPED)]
