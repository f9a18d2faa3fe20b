"""Rollouts to the group of samples that a record of experiences is: each column allocated once. Pure."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from schemas.errors import SchemaError, shown
from schemas.experience import Bool, ExperienceGroup, Rollout, present
from schemas.groups.column import MAX_ROUTED_EXPERTS
from schemas.groups.kept import decode_kept, small_enough
from schemas.groups.vectors import FLOAT32, INT32, UINT8, VectorColumn
from schemas.record import BatchType
from schemas.sampling import Sampling


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
    """Return the group of ``rollouts``, in their order, its columns freshly allocated.

    What some do not say: ``run_id_base``, the run of the first; ``version``, who drew it, -1: nobody knows; and
    ``sampling``, how, None: nobody knows. The rest is what the group says of itself.

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
    optional = _optional_columns(rollouts, prompt_lengths, lengths, task_id=task_id, sampling=sampling)
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


def _is_number(value: Any) -> bool:
    # Be it in a tensor.
    return isinstance(value, SupportsFloat) and not getattr(value, "ndim", 0)


def _octets(mask: Sequence[bool] | Bool) -> Sequence[bool] | NDArray[Any]:
    # As numbers of one byte; an array of booleans is one already.
    return mask.view(np.uint8) if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ else mask


def _optional_columns(
    rollouts: Sequence[Rollout],
    prompt_lengths: Sequence[int],
    lengths: Sequence[int],
    *,
    task_id: str,
    sampling: Sampling | None,
) -> dict[str, Any]:
    # Those of which a rollout has something. Raises SchemaError: a vector is none, or has a wrong length.
    given = set() if sampling is None else {"sampling"}
    for one in rollouts:
        given.update([column.name for column, _ in present(one)])
    if not given:
        return {}
    building = _Building(rollouts, prompt_lengths, lengths, sampling)
    found = {}
    try:
        for name in given:
            found[name] = getattr(building, name)()
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"task {shown(task_id)}, sample {building.at}: {name}: {error}") from error
    return found


class _Building:
    # ``at`` is the sample that it is at, for messages.
    def __init__(
        self,
        rollouts: Sequence[Rollout],
        prompt_lengths: Sequence[int],
        lengths: Sequence[int],
        sampling: Sampling | None,
    ) -> None:
        self._rollouts = rollouts
        self._sampling = sampling
        self._lengths = lengths
        self._responses = [n - prompt for n, prompt in zip(lengths, prompt_lengths, strict=True)]
        self.at = 0

    def _each(self) -> Iterator[Rollout]:
        for index, one in enumerate(self._rollouts):
            self.at = index
            yield one

    def turn_starts(self) -> NDArray[Any]:
        column, owners = VectorColumn(INT32), []
        for one in self._each():
            if one.turn_starts is not None:
                owners += [self.at] * column.add(one.turn_starts)
        return np.stack([np.array(owners, np.int32), column.array], axis=1)

    def turn_rewards(self) -> NDArray[Any]:
        column = VectorColumn(FLOAT32)
        for one in self._each():
            turns = 0 if one.turn_starts is None else len(one.turn_starts)
            self._add(column, one.turn_rewards, turns, "turns")
        return column.array  # type: ignore[no-any-return]  # of VectorColumn

    def sampling(self) -> NDArray[Any]:
        # Most were drawn in one way.
        ways = [self._sampling if one.sampling is None else one.sampling for one in self._rollouts]
        rows = {key: _row_of(way) for key, way in {id(way): way for way in ways}.items()}
        return np.array([rows[id(way)] for way in ways], np.float32)

    def teacher_logprobs(self) -> NDArray[Any]:
        column = VectorColumn(FLOAT32)
        for one in self._each():
            self._add(column, one.teacher_logprobs, self._responses[self.at], "response tokens")
        return column.array  # type: ignore[no-any-return]  # of VectorColumn

    def routes(self) -> NDArray[Any]:
        parts = []
        for one in self._each():
            if one.routes is None:
                raise ValueError("it has none, and others of the group have some")
            routes, tokens = np.asarray(one.routes), self._lengths[self.at]
            if routes.ndim != 3 or len(routes) not in (tokens - 1, tokens) or len(routes) == 0:
                raise ValueError(f"shape {list(routes.shape)}, where [{tokens} or one less, layers, k] is needed")
            if routes.dtype != UINT8:
                if int(routes.min()) < 0 or int(routes.max()) >= MAX_ROUTED_EXPERTS:
                    raise ValueError(f"experts {routes.min()} to {routes.max()} are not within 0 to 255")
                routes = routes.astype(UINT8)
            # Nothing follows the last token: whatever is chosen for it changes nothing that is trained on.
            parts.append(routes if len(routes) == tokens else np.concatenate([routes, routes[-1:]]))
        return np.concatenate(parts)

    def kept_sizes(self) -> NDArray[Any]:
        return np.array([*map(len, self._kept)], np.int32)

    def kept(self) -> NDArray[Any]:
        for _ in self._each():
            if kept := self._kept[self.at]:
                decode_kept(kept, self._responses[self.at])
        return np.frombuffer(b"".join(self._kept), UINT8)

    @cached_property
    def _kept(self) -> list[bytes | bytearray]:
        # Of more, a trainer is told nothing, and leaves the sample out.
        return small_enough(one.kept for one in self._rollouts)

    @staticmethod
    def _add(column: VectorColumn, values: Any, rows: int, what: str) -> None:
        added = column.add([float("nan")] * rows if values is None else values)
        if added != rows:
            raise ValueError(f"{added} entries for {rows} {what}")


def _row_of(how: Sampling | None) -> tuple[float, ...]:
    if how is not None and how.altered_by:
        # That of an engine that is not told; what matters is that something else had a say.
        return (1.0 if how.temperature is None else how.temperature, *(np.nan,) * 3)
    if how is None or how.temperature is None:
        return (np.nan,) * 4
    return how.temperature, *how.softmax[1:]
