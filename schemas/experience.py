"""Experiences: the samples of one task's attempt, as the trainer needs them.

One record holds a whole group, column by column: each field of all samples is one flat little-endian buffer, so that a
group of any size is encoded with one copy and decoded with none. ``schemas.groups.column`` has their types, shapes and
meanings; optional ones cost nothing where they are absent. Token ids and logprobs are the engine's own; text is never
tokenized again on the way.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from schemas.groups.column import OPTIONAL_COLUMNS, Column
from schemas.record import BatchType, Metrics
from schemas.sampling import Sampling

type Int32 = NDArray[np.int32]
type Float32 = NDArray[np.float32]
type UInt8 = NDArray[np.uint8]
type Bool = NDArray[np.bool_]

MAX_SAMPLES = 16_384  # of one group: enough for 16 turns of each of the most runs that a task may ask for
MAX_PIECES = 32  # records that the group of one attempt may be split into: see ``schemas.groups.pieces``
MAX_SPANS = 65_536
MAX_METRICS = 64  # of one sample


class SampledWith(NamedTuple):
    """How the tokens of a sample were drawn: a row of ``sampling``.

    Where something else had a say too (``Sampling.altered_by``), all but the temperature are NaN.
    """

    temperature: float  # what logits were divided by; 0 drew the likeliest token
    top_p: float  # 1: not limited
    top_k: float  # 0: not limited
    min_p: float  # 0: not limited

    @property
    def is_limited(self) -> bool:
        # Whether it was drawn from another distribution than the softmax at its temperature.
        whole = self.top_p == 1 and self.top_k == 0 and self.min_p == 0
        return self.temperature == 0 or not whole


class Sample(Struct, frozen=True, kw_only=True, eq=False):
    """A view of one sample of a group."""

    tokens: Int32  # [tokens] prompt, then response
    prompt_length: int
    logprobs: Float32  # [tokens - prompt_length]
    mask: Bool  # [tokens - prompt_length]
    reward: float
    run_id: int
    version_min: int
    version_max: int
    turn_starts: Int32 | None = None  # [turns] the first response token of each
    turn_rewards: Float32 | None = None  # [turns] NaN where the workflow gave none
    sampling: SampledWith | None = None
    teacher_logprobs: Float32 | None = None  # [tokens - prompt_length] NaN where the teacher was not asked
    routes: UInt8 | None = None  # [tokens, layers, k]
    kept: UInt8 | None = None  # from which tokens each response token was drawn: see ``schemas.groups.kept``


class ExperienceGroup(Struct, frozen=True, kw_only=True, eq=False):
    """The samples of one attempt at one task. Produced by explorers to ``experiences``, keyed by ``task_id``.

    Immutable, compared by identity. A msgspec ``Struct`` because a frozen dataclass takes longer to fill than its bytes
    take to parse; change a copy with ``msgspec.structs.replace``.
    """

    SCHEMA: ClassVar[str] = "experience"
    VERSION: ClassVar[int] = 1
    MAX_BYTES: ClassVar[int] = 64 << 20

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
    metrics: list[Metrics] = []
    finish_reasons: list[str] = []
    turn_starts: Int32 | None = None
    turn_rewards: Float32 | None = None
    sampling: Float32 | None = None
    teacher_logprobs: Float32 | None = None
    routes: UInt8 | None = None
    kept_sizes: Int32 | None = None
    kept: UInt8 | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def mask(self) -> Bool:
        """[responses] True where a response token is the model's own; unpacked anew at each call."""
        return np.unpackbits(self.mask_bits, count=len(self.logprobs)).view(np.bool_)

    @property
    def is_plain(self) -> bool:
        # Whether it has none of the optional columns.
        return (
            self.turn_starts is None
            and self.turn_rewards is None
            and self.sampling is None
            and self.teacher_logprobs is None
            and self.routes is None
            and self.kept_sizes is None
            and self.kept is None
        )

    def samples(self) -> Iterator[Sample]:
        """Return the samples in order, as views into this group's buffers."""
        return self._plain_samples() if self.is_plain else self._full_samples()

    def _full_samples(self) -> Iterator[Sample]:
        for sample, views in zip(self._plain_samples(), _views(self), strict=True):
            rows = views.pop("sampling", None)
            row = () if rows is None else rows[0].tolist()
            told = None if all(map(math.isnan, row)) else SampledWith(*row)
            if views.pop("kept_sizes", None) == 0:
                del views["kept"]
            yield msgspec.structs.replace(sample, sampling=told, **views)

    def _plain_samples(self) -> Iterator[Sample]:
        mask = self.mask
        drawn_by: list[list[int]] = [[] for _ in range(len(self))]
        for owner, _, version in self.versions.tolist():
            drawn_by[owner].append(version)
        columns = (self.lengths, self.prompt_lengths, self.rewards, self.run_ids)
        token, response = 0, 0
        for length, prompt, reward, run_id, versions in zip(*(c.tolist() for c in columns), drawn_by, strict=True):
            n = length - prompt
            yield Sample(
                tokens=self.tokens[token : token + length],
                prompt_length=prompt,
                logprobs=self.logprobs[response : response + n],
                mask=mask[response : response + n],
                reward=reward,
                run_id=run_id,
                version_min=min(versions, default=-1),
                version_max=max(versions, default=-1),
            )
            token += length
            response += n


# (first response token, model version): this version drew the tokens from here to the next span
type VersionSpan = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One sample of a task's group, as a workflow gives it: a run, or a step of one; what ``build_group`` takes."""

    prompt_token_ids: Sequence[int] | Int32
    # everything after the prompt: the model's own tokens and, in several turns, what was said to it
    response_token_ids: Sequence[int] | Int32
    # [response] as the engine gave them; anything (0.0 by custom) where the token is not the model's own
    logprobs: Sequence[float] | Float32
    mask: Sequence[bool] | Bool | None = None  # [response] True where the token is the model's own; None when all are
    reward: float
    # What the batch's metrics are made of. ``reward`` is here too, for whoever aggregates.
    metrics: Metrics = field(default_factory=dict)
    finish_reason: str = "stop"
    versions: Sequence[VersionSpan] = ()  # who drew what, in order; empty: of the version served at the start
    # Of which run of the task: rollouts with the same are one run, with the metrics of its last. None for all of a
    # group: each is a run, in order.
    run_id: int | None = None
    # the first response token of each turn that the model took, ascending
    turn_starts: Sequence[int] | Int32 | None = None
    turn_rewards: Sequence[float] | Float32 | None = None  # one for each turn; NaN where it has none of its own
    # how it was drawn, in full: the explorer's defaults and the task's wishes; None: as the engine was asked
    sampling: Sampling | None = None
    teacher_logprobs: Sequence[float] | Float32 | None = None  # [response] under a teacher; NaN where it was not asked
    # [tokens, layers, k] or [tokens - 1, layers, k]: the experts that each MoE layer's router chose for each token; an
    # engine never runs the last one. All of a group, or none.
    routes: UInt8 | None = None
    # from which tokens each response token was drawn: see ``schemas.groups.kept``
    kept: bytes | bytearray | None = None

    @property
    def kept_sizes(self) -> int | None:
        return None if self.kept is None else len(self.kept)


_optional_values = attrgetter(*(column.name for column in OPTIONAL_COLUMNS))


def present(group: ExperienceGroup | Rollout) -> list[tuple[Column, Any]]:
    values = _optional_values(group)
    return [(column, value) for column, value in zip(OPTIONAL_COLUMNS, values, strict=True) if value is not None]


def row_bounds(group: ExperienceGroup) -> dict[str, list[int]]:
    """Return where the rows of each sample begin, by what they count; the last entry is where they end."""
    responses = group.lengths - group.prompt_lengths
    samples = np.arange(len(group) + 1)
    owners = np.zeros(0, np.int32) if group.turn_starts is None else group.turn_starts[:, 0]
    bounds = {
        "turns": np.searchsorted(owners, samples),
        "samples": samples,
        "responses": np.concatenate([[0], np.cumsum(responses)]),
        "tokens": np.concatenate([[0], np.cumsum(group.lengths)]),
        "kept": np.concatenate([[0], np.cumsum([0] * len(group) if group.kept_sizes is None else group.kept_sizes)]),
    }
    return {name: found.tolist() for name, found in bounds.items()}


def _views(group: ExperienceGroup) -> Iterator[dict[str, Any]]:
    """Return for each sample its part of the columns that there are; of ``turn_starts``, the tokens alone."""
    bounds = row_bounds(group)
    columns = [
        (column.name, bounds[column.length], array[:, 1] if column.name == "turn_starts" else array)
        for column, array in present(group)
    ]
    for sample in range(len(group)):
        yield {name: array[at[sample] : at[sample + 1]] for name, at, array in columns}
