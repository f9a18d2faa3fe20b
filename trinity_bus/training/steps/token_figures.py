"""What a step keeps of single tokens for people who look: of which samples, and how. Nothing that is trained needs it.

::

    plan (rank 0)    samples of a step --marked--> those of the chosen groups keep their number, others have none
    passes           a micro-batch's log-probabilities and entropies --keep--> of numbered samples, two numbers a token
    after the step   --take--> ``SampleFigures`` of this rank; rank 0 gathers those of the others with their answers

Kept is what the pass computes that gradients are from, so nothing is computed twice. Of several updates each sample's
figures are of the one that it is part of. Where the critic warms up the policy makes no pass, and there are none.

Of the ranks that hold parts of one model those of the last stage have the figures, and the first of them keeps them.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from schemas.token_figures import BYTES_PER_TOKEN, FLOAT16
from trinity_bus.config import TrainerSettings
from trinity_bus.training.steps.packing import PackedArrays, TrainSample

if TYPE_CHECKING:
    import torch

# Of a step, with ``trainer.token_figures=sampled``
SAMPLED_GROUPS: Final = 8
# Of one rank and step: what is more is left out
MAX_BYTES: Final = 64 << 20
# Beside the step's shuffling, which has the same seed
_OWN_STREAM: Final = 0x70F


class SampleFigures(Struct, frozen=True, array_like=True):
    number: int
    # Of the step
    updates_before: int
    # As ``schemas.token_figures`` has them
    gaps: bytes
    entropies: bytes


def marked(
    samples: Sequence[TrainSample], sizes: Sequence[int], settings: TrainerSettings, step: int
) -> list[TrainSample]:
    """Return samples of which those alone have a number whose figures are kept.

    ``sizes``: samples of each of the step's groups, those too that teach nothing. A step that is trained again chooses
    the same.
    """
    chosen: frozenset[int]
    match settings.token_figures:
        case "all":
            return list(samples)
        case "none":
            chosen = frozenset()
        case "sampled":
            ends = list(accumulate(sizes))
            numbers = np.array([sample.number for sample in samples if sample.number is not None], np.int64)
            taught = np.unique(np.searchsorted(ends, numbers, side="right"))
            order = np.random.default_rng((settings.seed, step, _OWN_STREAM)).permutation(len(taught))
            groups = taught[order[:SAMPLED_GROUPS]].tolist()
            chosen = frozenset(n for group in groups for n in range(ends[group] - sizes[group], ends[group]))
    return [sample if sample.number in chosen else replace(sample, number=None) for sample in samples]


class FigureKeeper:
    """``is_keeping``: whether this rank is the one of those that compute the same figures."""

    def __init__(self, *, is_keeping: bool) -> None:
        self._is_keeping = is_keeping
        self._kept: dict[int, tuple[int, TrainSample, torch.Tensor, torch.Tensor]] = {}
        self._tokens = 0
        self.updates = 0

    def begin(self) -> None:
        self._kept, self._tokens, self.updates = {}, 0, 0

    def keep(
        self, samples: Iterable[TrainSample], arrays: PackedArrays, gaps: "torch.Tensor", entropies: "torch.Tensor"
    ) -> None:
        """Keep what is wanted of a micro-batch, [tokens]; of a sample that is run again, the first."""
        if not self._is_keeping:
            return
        for sample, start in zip(samples, arrays.bounds[:-1].tolist(), strict=True):
            length = len(sample.mask)
            if sample.number is None or sample.number in self._kept:
                continue
            if (self._tokens + length) * BYTES_PER_TOKEN > MAX_BYTES:
                continue
            self._tokens += length
            first = start + sample.prompt_length - 1
            response = slice(first, first + length)
            own = gaps[response].half(), entropies[response].half()
            self._kept[sample.number] = (self.updates, sample, *own)

    def take(self) -> list[SampleFigures]:
        """Return what was kept of the step, once: of samples whose figures are all finite."""
        kept, self._kept = self._kept, {}
        found = []
        for number, (updates, sample, gaps, entropies) in kept.items():
            apart = np.where(sample.mask, gaps.cpu().numpy(), np.float16(0)).astype(FLOAT16)
            # Rounding can leave a distribution that is certain a little below 0.
            unsure = np.maximum(entropies.cpu().numpy(), np.float16(0)).astype(FLOAT16)
            if np.isfinite(apart).all() and np.isfinite(unsure).all():
                found.append(SampleFigures(number, updates, apart.tobytes(), unsure.tobytes()))
        return found
