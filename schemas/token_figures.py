"""Figures of single tokens, as a trainer computes them: told beside its training, and never needed by it.

::

    a step's pass over a sample --> of each response token: entropy, and how far trainer and engine are apart
      of the groups of `trainer.token_figures` -----------------------------------------> a record for each group

What the log has of a token otherwise is the log-probability that the engine gave it. The trainer's is that plus the
gap: kept is the difference, because half precision rounds small numbers less.

A record is of samples of one record of ``experiences``, by their numbers in it; samples that the step left out, or that
taught nothing, are not in it. Each says how many updates the step had made before. With 0 of them a gap is what engine
and trainer disagree by, and what the weights have moved since the sample was drawn; with more, the step's own updates
are in it, too.

=====================================  ===============================================================================
what happens                           what comes of it
=====================================  ===============================================================================
a step is trained again after a crash  it chooses the same groups and tells of them again; the last record counts
the brokers do not keep up             records are left out and counted (``rl.trainer.token_figures_dropped``); no
                                       step waits
a figure is not finite                 its sample is left out
lengths disagree, or a NaN             the record cannot be read
=====================================  ===============================================================================
"""

from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from schemas.event import Position
from schemas.experience import MAX_SAMPLES
from schemas.record import Count, Identifier, Positive, Record

type Float16 = NDArray[np.float16]

FLOAT16 = np.dtype("<f2")
BYTES_PER_TOKEN = 2 * FLOAT16.itemsize  # two numbers for each


class TokenFigures(Record):
    """Figures of the response tokens of some samples. Produced by trainers to ``token-figures``, keyed by ``task_id``.

    Columns are of all samples, one after the other, as in ``experiences``.
    """

    SCHEMA: ClassVar[str] = "token_figures"
    MAX_BYTES: ClassVar[int] = 4 << 20

    trainer: Identifier
    run: Identifier
    step: Positive
    """As the step's ``StepBegun`` says, like the two above."""
    task_id: Identifier
    position: Position
    """Of the group on ``experiences``."""
    samples: Annotated[list[Annotated[int, Field(ge=0, lt=MAX_SAMPLES)]], Field(min_length=1, max_length=MAX_SAMPLES)]
    """Their numbers in it, ascending."""
    lengths: Annotated[list[Count], Field(min_length=1, max_length=MAX_SAMPLES)]
    """Response tokens of each."""
    updates_before: Annotated[list[Count], Field(min_length=1, max_length=MAX_SAMPLES)]
    """Of each: how many updates of the step the weights had behind them."""
    gaps: bytes
    """float16, little-endian: the token's log-probability by the trainer less that by the engine, in nats; 0 where the
    token is not trained on."""
    entropies: bytes
    """float16, little-endian: of the distribution that the token is from, in nats, by the trainer."""

    @model_validator(mode="after")
    def _columns_agree(self) -> "TokenFigures":
        if not len(self.samples) == len(self.lengths) == len(self.updates_before):
            raise ValueError("samples, lengths and updates_before have an entry for each sample")
        if any(low >= high for low, high in pairwise(self.samples)):
            raise ValueError("samples ascend")
        if not len(self.gaps) == len(self.entropies) == FLOAT16.itemsize * sum(self.lengths):
            raise ValueError("gaps and entropies have a number of two bytes for each token of lengths")
        gaps, entropies = (np.frombuffer(column, FLOAT16) for column in (self.gaps, self.entropies))
        if not (np.isfinite(gaps).all() and np.isfinite(entropies).all() and (entropies >= 0).all()):
            raise ValueError("gaps and entropies are finite, and entropies not negative")
        return self

    def of(self, sample: int) -> tuple[Float16, Float16, int] | None:
        """Return gaps and entropies of a sample and the updates before it; None where the record does not have it."""
        if sample not in self.samples:
            return None
        at = self.samples.index(sample)
        first = sum(self.lengths[:at])
        there = slice(first, first + self.lengths[at])
        columns = (np.frombuffer(column, FLOAT16)[there] for column in (self.gaps, self.entropies))
        return (*columns, self.updates_before[at])  # type: ignore[return-value]  # two columns
