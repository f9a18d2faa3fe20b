"""Experiences: the samples of one task's attempt, as the trainer needs them.

One record holds a whole group, column by column: each field of all samples is one flat little-endian buffer, so that a
group of any size is encoded with one copy and decoded with none.

===================  ========  ==================  ==================================================================
buffer               dtype     shape               meaning
===================  ========  ==================  ==================================================================
``tokens``           int32     [sum(lengths)]      prompt and response token ids, sample after sample
``lengths``          int32     [samples]           tokens per sample
``prompt_lengths``   int32     [samples]           how many of them are prompt
``logprobs``         float32   [responses]         of each response token, under the policy that drew it
``mask_bits``        uint8     [responses / 8]     a bit per response token, first in the highest bit; 1 is trained on
``rewards``          float32   [samples]           NaN where the workflow gave none
``run_ids``          int32     [samples]           0 .. repeat_times - 1
``versions``         int32     [spans, 3]          (sample, first response token, model version): who drew what
===================  ========  ==================  ==================================================================

``responses`` is ``sum(lengths - prompt_lengths)``. Token ids and logprobs are the engine's own; text is never tokenized
again on the way.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from schemas.record import BatchType, Metrics

type Int32 = NDArray[np.int32]
type Float32 = NDArray[np.float32]
type UInt8 = NDArray[np.uint8]
type Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Sample:
    """A view of one sample of a group."""

    tokens: Int32
    """[tokens] prompt, then response."""
    prompt_length: int
    logprobs: Float32
    """[tokens - prompt_length]"""
    mask: Bool
    """[tokens - prompt_length]"""
    reward: float
    run_id: int
    version_min: int
    version_max: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExperienceGroup:
    """The samples of one attempt at one task. Produced by explorers to ``experiences``, keyed by ``task_id``."""

    SCHEMA: ClassVar[str] = "experience"
    VERSION: ClassVar[int] = 1

    task_id: str
    attempt: int
    batch_id: str
    batch_type: BatchType
    workflow: str
    model: str
    explorer: str
    incarnation: str
    tokens: Int32
    lengths: Int32
    prompt_lengths: Int32
    logprobs: Float32
    mask_bits: UInt8
    rewards: Float32
    run_ids: Int32
    versions: Int32
    metrics: list[Metrics] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.lengths)

    @property
    def mask(self) -> Bool:
        """[responses] True where a response token is the model's own; unpacked anew at each call."""
        return np.unpackbits(self.mask_bits, count=len(self.logprobs)).view(np.bool_)

    def samples(self) -> Iterator[Sample]:
        """The samples in order, as views into this group's buffers."""
        mask = self.mask
        token, response = 0, 0
        for i, (length, prompt) in enumerate(zip(self.lengths.tolist(), self.prompt_lengths.tolist(), strict=True)):
            n = length - prompt
            spans = self.versions[self.versions[:, 0] == i, 2]
            yield Sample(
                tokens=self.tokens[token : token + length],
                prompt_length=prompt,
                logprobs=self.logprobs[response : response + n],
                mask=mask[response : response + n],
                reward=float(self.rewards[i]),
                run_id=int(self.run_ids[i]),
                version_min=int(spans.min(initial=np.iinfo(np.int32).max)) if len(spans) else -1,
                version_max=int(spans.max(initial=-1)),
            )
            token += length
            response += n
