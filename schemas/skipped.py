"""Batches that a trainer has passed over because an operator said so, as they stand in a model's lineage."""

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.numbers import MAX_VERSION
from schemas.record import Identifier, Record

MAX_REASON_CHARS = 500
MAX_SKIPPED = 64
"""Batches that a lineage names: the last ones."""


class SkippedBatch(Record):
    """A batch that was passed over. It took its step, which changed no weights."""

    SCHEMA: ClassVar[str] = "skipped_batch"

    batch_id: Identifier
    step: Annotated[int, Field(ge=1, le=MAX_VERSION)]
    """The step that it took; its sequence."""
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS)]


type SkippedBatches = Annotated[list[SkippedBatch], Field(max_length=MAX_SKIPPED)]
