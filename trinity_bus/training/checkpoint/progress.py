"""What is known of a run's progress, and of who wrote it down."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from schemas import StepBegun
from schemas.skipped import MAX_SKIPPED, SkippedBatch
from trinity_bus.training.checkpoint.resume import Shaping


class RunIdentity(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    cluster: str
    # Another one after the topic was deleted and made anew
    batches: str
    namespace: str
    # Digest of the model that training began with
    model: str


class TrainingProgress(BaseModel):
    """How far training has come: what a restart needs to go on where it stopped."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: Annotated[int, Field(ge=0)] = 0
    version: Annotated[int, Field(ge=0)] = 0
    # Of the next record to read
    batches_offset: Annotated[int, Field(ge=0)] = 0
    # Of the last batch trained on
    sequence: Annotated[int, Field(ge=0)] = 0
    # That the loss was over, since the start
    trained_tokens: Annotated[int, Field(ge=0)] = 0
    # How many demonstrations or preferences there were to choose from when the first step began; 0 where none is
    # learned from.
    examples: Annotated[int, Field(ge=0)] = 0
    run: RunIdentity | None = None
    # The model that training began with, ``organization/name@commit``, where it is from a hub
    source: str | None = None
    # With which it was trained last; None in checkpoints of the first programs
    settings: Shaping | None = None
    # Batches that were passed over because an operator said so, the last ones; in the order of their steps.
    skipped: Annotated[tuple[SkippedBatch, ...], Field(max_length=MAX_SKIPPED)] = ()

    def after(self, begun: StepBegun) -> "TrainingProgress":
        """Add what only the record of the step that an engine has made knows."""
        skipped = self.skipped
        if begun.skipped is not None:
            passed_over = SkippedBatch(batch_id=begun.batch_id, step=self.step, reason=begun.skipped)
            skipped = (*skipped, passed_over)[-MAX_SKIPPED:]
        return self.model_copy(
            update={
                "batches_offset": begun.next_offset,
                "sequence": begun.sequence,
                "examples": begun.examples,
                "skipped": skipped,
            }
        )


class WrittenBy(BaseModel):
    """What the optimizer's state in a checkpoint depends on: who reads it must be the same."""

    model_config = ConfigDict(frozen=True)

    # As ``trainer.engine`` has it
    engine: str = "megatron"
    dtype: str
