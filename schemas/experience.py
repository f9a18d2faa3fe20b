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
``run_ids``          int32     [samples]           0 .. repeat_times - 1; samples with the same are one run
``versions``         int32     [spans, 3]          (sample, first response token, model version): who drew what
===================  ========  ==================  ==================================================================

Five more are optional, and cost nothing where they are absent; see ``schemas.optional_columns``:

====================  ========  ===================  ================================================================
``turn_starts``       int32     [turns, 2]           (sample, first response token) of each turn
``turn_rewards``      float32   [turns]              of each turn; NaN where the workflow gave none
``sampling``          float32   [samples, 4]         temperature, top_p, top_k, min_p; NaN where nobody knows
``teacher_logprobs``  float32   [responses]          under a teacher; NaN where it was not asked
``routes``            uint8     [tokens, layers, k]  the experts that the router of each MoE layer chose for each token
====================  ========  ===================  ================================================================

``responses`` is ``sum(lengths - prompt_lengths)``. Token ids and logprobs are the engine's own; text is never tokenized
again on the way.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, SupportsFloat

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from schemas import optional_columns
from schemas.column import Column
from schemas.errors import SchemaError, shown
from schemas.record import BatchType, Metrics
from schemas.sampling import Sampling
from schemas.vectors import FLOAT32, INT32, UINT8, VectorColumn

type Int32 = NDArray[np.int32]
type Float32 = NDArray[np.float32]
type UInt8 = NDArray[np.uint8]
type Bool = NDArray[np.bool_]

MAX_SAMPLES = 16_384  # of one group: enough for 16 turns of each of the most runs that a task may ask for
MAX_PIECES = 32  # records that the group of one attempt may be split into: see ``schemas.pieces``
MAX_SPANS = 65_536
MAX_METRICS = 64  # of one sample


# the buffers of a group, in the order in which they are written
COLUMNS = (
    Column("tokens", "<i4", (), "sum(lengths)", "prompt and response token ids, sample after sample"),
    Column("lengths", "<i4", (), "samples", "tokens per sample"),
    Column("prompt_lengths", "<i4", (), "samples", "how many of them are prompt"),
    Column("logprobs", "<f4", (), "responses", "of each response token, under the policy that drew it"),
    Column("mask_bits", "|u1", (), "ceil(responses / 8)", "a bit per response token, first highest; 1 is trained on"),
    Column("rewards", "<f4", (), "samples", "NaN where the workflow gave none"),
    Column("run_ids", "<i4", (), "samples", "0 .. repeat_times - 1; samples with the same are one run"),
    Column("versions", "<i4", (3,), "spans", "(sample, first response token, model version): who drew what"),
)


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

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def mask(self) -> Bool:
        """[responses] True where a response token is the model's own; unpacked anew at each call."""
        return np.unpackbits(self.mask_bits, count=len(self.logprobs)).view(np.bool_)

    @property
    def is_plain(self) -> bool:
        # Whether it has none of the optional columns.
        return _is_plain(self)

    def samples(self) -> Iterator[Sample]:
        """Return the samples in order, as views into this group's buffers."""
        return self._plain_samples() if self.is_plain else self._full_samples()

    def _full_samples(self) -> Iterator[Sample]:
        for sample, views in zip(self._plain_samples(), optional_columns.views(self), strict=True):
            rows = views.pop("sampling", None)
            row = () if rows is None else rows[0].tolist()
            told = None if all(map(math.isnan, row)) else SampledWith(*row)
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

    @property
    def is_plain(self) -> bool:
        # Whether it says nothing for the optional columns.
        return _is_plain(self)


def build_group(
    rollouts: Sequence[Rollout],
    *,
    run_id_base: int = 0,
    version: int = -1,
    sampling: Sampling | None = None,
    task_id: str,
    attempt: int,
    batch_id: str,
    batch_type: BatchType,
    workflow: str,
    model: str,
    explorer: str,
    incarnation: str,
) -> ExperienceGroup:
    """Return the group of ``rollouts``, its columns freshly allocated.

    Args:
        rollouts: In order.
        run_id_base: The run of the first of them, where they do not say of which run they are.
        version: Who drew those that do not say it; -1: nobody knows.
        sampling: How those were drawn that do not say it; None: nobody knows.
        task_id: Here and below, what the group says of itself.
        attempt: Of the task.
        batch_id: Of the task.
        batch_type: Of the batch.
        workflow: Of the task.
        model: That drew them.
        explorer: Who answers.
        incarnation: Of the explorer.

    Raises:
        SchemaError: There is none, one's vectors are none, its response, logprobs and mask differ in length, or some
            say of which run they are and some do not; or what is optional contradicts that.
        AttributeError, TypeError, ValueError, OverflowError: It is no rollout, or a value is no number for its column.
    """
    if not rollouts:
        raise SchemaError(f"task {shown(task_id)}: a group needs at least one sample")
    tokens, logprobs, masks = VectorColumn(INT32), VectorColumn(FLOAT32), VectorColumn(UINT8)
    prompt_lengths, lengths = [], []
    for i, one in enumerate(rollouts):
        try:
            prompt, response = tokens.add(one.prompt_token_ids), tokens.add(one.response_token_ids)
            drawn = logprobs.add(one.logprobs)
            masked = masks.ones(response) if one.mask is None else masks.add(_octets(one.mask))
        except (TypeError, ValueError, OverflowError) as error:
            raise SchemaError(f"task {shown(task_id)}, sample {i}: {error}") from error
        if not response == drawn == masked:
            raise SchemaError(
                f"task {shown(task_id)}, sample {i}: {response} response tokens, {drawn} logprobs and "
                f"{masked} mask entries; all three must be equal"
            )
        prompt_lengths.append(prompt)
        lengths.append(prompt + response)
    if 0 < sum(one.run_id is None for one in rollouts) < len(rollouts):
        raise SchemaError(f"task {shown(task_id)}: some rollouts say of which run they are, others do not")
    optional = optional_columns.build(rollouts, prompt_lengths, lengths, task_id=task_id, sampling=sampling)
    unknown = [(0, version)] if version >= 0 else []
    spans = [
        n for i, s in enumerate(rollouts) for start, drawn_by in s.versions or unknown for n in (i, start, drawn_by)
    ]
    return ExperienceGroup(
        task_id=task_id,
        attempt=attempt,
        batch_id=batch_id,
        batch_type=batch_type,
        workflow=workflow,
        model=model,
        explorer=explorer,
        incarnation=incarnation,
        tokens=tokens.array,
        lengths=np.array(lengths, np.int32),
        prompt_lengths=np.array(prompt_lengths, np.int32),
        logprobs=logprobs.array,
        mask_bits=np.packbits(masks.array),
        rewards=np.array([float(s.reward) for s in rollouts], np.float32),
        run_ids=np.array([run_id_base + i if s.run_id is None else s.run_id for i, s in enumerate(rollouts)], np.int32),
        versions=np.array(spans, np.int32).reshape(-1, 3),
        metrics=[
            # What is no number is for nobody but the workflow. Most are, and to ask for it by name is the cheapest.
            {str(name): float(value) for name, value in s.metrics.items() if type(value) is float or _is_number(value)}
            for s in rollouts
        ],
        finish_reasons=[s.finish_reason for s in rollouts],
        **optional,
    )


def join_groups(parts: Sequence[ExperienceGroup]) -> ExperienceGroup:
    """Return the group of a task that was split over several attempts, in the order of the parts.

    What an optional column says of a part that lacks it is that nobody knows; of routes all parts have some, or the
    whole has none. What is one value for each group (attempt, explorer, incarnation) is that of the first part. A
    single
    part is returned as it is.

    Raises:
        SchemaError: There is none, or they are of several tasks.
    """
    if len({part.task_id for part in parts}) != 1:
        raise SchemaError(f"a group is of one task, got parts of {len({part.task_id for part in parts})}")
    if len(parts) == 1:
        return parts[0]
    first_sample = np.cumsum([0, *(len(part) for part in parts[:-1])])
    return msgspec.structs.replace(
        parts[0],
        tokens=np.concatenate([part.tokens for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        prompt_lengths=np.concatenate([part.prompt_lengths for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        mask_bits=np.packbits(np.concatenate([part.mask for part in parts])),
        rewards=np.concatenate([part.rewards for part in parts]),
        run_ids=np.concatenate([part.run_ids for part in parts]),
        versions=np.concatenate(
            [
                part.versions + np.array([first, 0, 0], np.int32)
                for first, part in zip(first_sample.tolist(), parts, strict=True)
            ]
        ),
        metrics=[metrics for part in parts for metrics in part.metrics],
        finish_reasons=[reason for part in parts for reason in part.finish_reasons],
        **optional_columns.joined(parts),
    )


def _is_plain(one: ExperienceGroup | Rollout) -> bool:
    return (
        one.turn_starts is None
        and one.turn_rewards is None
        and one.sampling is None
        and one.teacher_logprobs is None
        and one.routes is None
    )


def _is_number(value: Any) -> bool:
    # Be it in a tensor.
    return isinstance(value, SupportsFloat) and not getattr(value, "ndim", 0)


def _octets(mask: Sequence[bool] | Bool) -> Sequence[bool] | NDArray[Any]:
    # As numbers of one byte; an array of booleans is one already.
    return mask.view(np.uint8) if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ else mask
