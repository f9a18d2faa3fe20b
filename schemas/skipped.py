"""What an operator has done to a model's lineage: batches that were passed over, versions that were discarded."""

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.record import MAX_VERSION, Count, Identifier, Record, Version

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
