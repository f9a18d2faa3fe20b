"""The columns that a group of experiences may lack: built, cut and joined, each by what its rows belong to. Pure.

A group without them is what it was before there were any, byte for byte, and whoever knows none of them passes over
them. Rows lie in the order of the samples; what they count is the column's ``length``::

    turns        any number of each sample, found by the sample numbers in ``turn_starts``
    samples      one of each
    responses    one of each response token
    tokens       one of each token
"""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from schemas.column import Column
from schemas.errors import DecodeError, SchemaError, shown
from schemas.sampling import Sampling
from schemas.vectors import FLOAT32, INT32, UINT8, VectorColumn

if TYPE_CHECKING:
    from schemas.experience import ExperienceGroup, Rollout

MAX_TURNS = 65_536  # of all samples of a group
MAX_ROUTED_LAYERS = 1024
MAX_ROUTED_EXPERTS = 256  # of a layer, and so those that a token may be given to: their numbers are bytes

# in the order in which they are written, those that there are
OPTIONAL_COLUMNS = (
    Column("turn_starts", "<i4", (2,), "turns", "(sample, first response token) of each turn"),
    Column("turn_rewards", "<f4", (), "turns", "of each turn; NaN where the workflow gave none"),
    Column(
        "sampling",
        "<f4",
        (4,),
        "samples",
        "temperature, top_p (1: all), top_k (0: all), min_p (0: all); all NaN: nobody knows; the last three: "
        "something else limited it too",
    ),
    Column("teacher_logprobs", "<f4", (), "responses", "of each response token, under a teacher; NaN: not asked"),
    Column("routes", "|u1", ("layers", "k"), "tokens", "the experts that each MoE layer's router chose for each token"),
)
_NAMES = tuple(column.name for column in OPTIONAL_COLUMNS)
_values = attrgetter(*_NAMES)


def present(group: "ExperienceGroup") -> list[tuple[Column, NDArray[Any]]]:
    return [
        (column, array) for column, array in zip(OPTIONAL_COLUMNS, _values(group), strict=True) if array is not None
    ]


def row_bounds(group: "ExperienceGroup") -> dict[str, list[int]]:
    """Return where the rows of each sample begin, by what they count; the last entry is where they end."""
    responses = group.lengths - group.prompt_lengths
    samples = np.arange(len(group) + 1)
    owners = np.zeros(0, np.int32) if group.turn_starts is None else group.turn_starts[:, 0]
    bounds = {
        "turns": np.searchsorted(owners, samples),
        "samples": samples,
        "responses": np.concatenate([[0], np.cumsum(responses)]),
        "tokens": np.concatenate([[0], np.cumsum(group.lengths)]),
    }
    return {name: found.tolist() for name, found in bounds.items()}


def views(group: "ExperienceGroup") -> Iterator[dict[str, Any]]:
    """Return for each sample its part of the columns that there are; of ``turn_starts``, the tokens alone."""
    bounds = row_bounds(group)
    columns = [
        (column.name, bounds[column.length], array[:, 1] if column.name == "turn_starts" else array)
        for column, array in present(group)
    ]
    for sample in range(len(group)):
        yield {name: array[at[sample] : at[sample + 1]] for name, at, array in columns}


def cut(group: "ExperienceGroup", first: int, end: int) -> dict[str, NDArray[Any]]:
    """Return the columns of the samples from ``first`` to before ``end``."""
    if group.is_plain:
        return {}
    bounds = row_bounds(group)
    found = {
        column.name: array[bounds[column.length][first] : bounds[column.length][end]]
        for column, array in present(group)
    }
    if "turn_starts" in found:
        found["turn_starts"] = found["turn_starts"] - np.array([first, 0], np.int32)
    return found


def joined(parts: Sequence["ExperienceGroup"]) -> dict[str, NDArray[Any] | None]:
    """Return the columns of a group that was split, where a part has them; None for those that the whole has not.

    What a part lacks is not known of it. Of routes that cannot be said: the whole has them where all parts have.
    """
    if all(part.is_plain for part in parts):
        return {}
    first_samples = np.cumsum([0, *map(len, parts[:-1])]).tolist()
    found: dict[str, NDArray[Any] | None] = {column.name: None for column in OPTIONAL_COLUMNS}
    for column in OPTIONAL_COLUMNS:
        arrays = [getattr(part, column.name) for part in parts]
        known = [array for array in arrays if array is not None]
        if not known:
            continue
        if column.name == "routes":
            if len(known) == len(parts) and len({array.shape[1:] for array in known}) == 1:
                found["routes"] = np.concatenate(known)
            continue
        filled = [_unknown(column, part) if array is None else array for array, part in zip(arrays, parts, strict=True)]
        if column.name == "turn_starts":
            filled = [
                array + np.array([first, 0], np.int32) for array, first in zip(filled, first_samples, strict=True)
            ]
        found[column.name] = np.concatenate(filled)
    return found


def _unknown(column: Column, part: "ExperienceGroup") -> NDArray[Any]:
    rows = row_bounds(part)[column.length][-1]
    return np.full((rows, *(size for size in column.tail if isinstance(size, int))), np.nan).astype(column.dtype)


def row_bytes(group: "ExperienceGroup") -> list[tuple[list[int], int]]:
    """Return of each column that there is where the rows of each sample begin, and the bytes of a row."""
    if group.is_plain:
        return []
    bounds = row_bounds(group)
    return [(bounds[column.length], array.itemsize * int(np.prod(array.shape[1:]))) for column, array in present(group)]


def build(
    rollouts: Sequence["Rollout"],
    prompt_lengths: Sequence[int],
    lengths: Sequence[int],
    *,
    task_id: str,
    sampling: Sampling | None,
) -> dict[str, Any]:
    """Return the columns of which a rollout has something; ``sampling``: of those that do not say it, None: unknown.

    Raises:
        SchemaError: A vector is none, or has another length than it must have.
    """
    given = set() if sampling is None else {"sampling"}
    for one in rollouts:
        given.update([name for name, value in zip(_NAMES, _values(one), strict=True) if value is not None])
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
        rollouts: Sequence["Rollout"],
        prompt_lengths: Sequence[int],
        lengths: Sequence[int],
        sampling: Sampling | None,
    ) -> None:
        self._rollouts = rollouts
        self._sampling = sampling
        self._lengths = lengths
        self._responses = [n - prompt for n, prompt in zip(lengths, prompt_lengths, strict=True)]
        self.at = 0

    def _each(self) -> Iterator["Rollout"]:
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
    return (how.temperature, 1.0 if how.top_p is None else how.top_p, max(how.top_k or 0, 0), how.min_p or 0.0)


def check_optional(group: "ExperienceGroup", responses: list[int]) -> None:
    """Raise DecodeError where optional columns do not fit the samples. Values are checked by ``schemas.trainable``.

    ``responses``: response tokens of each sample; the group's other columns fit together.
    """
    turns = 0
    if group.turn_starts is not None:
        turns = len(group.turn_starts)
        _check_turns(group.turn_starts, responses)
    elif group.turn_rewards is not None:
        raise _broken("turn_rewards has no turn_starts beside it")
    rows = {"turns": turns, "samples": len(responses), "responses": sum(responses), "tokens": len(group.tokens)}
    for column, array in present(group):
        if len(array) != rows[column.length]:
            raise _broken(f"{column.name} has {len(array)} rows for {rows[column.length]} {column.length}")


def _check_turns(turn_starts: NDArray[np.int32], responses: list[int]) -> None:
    if len(turn_starts) > MAX_TURNS:
        raise _broken(f"turn_starts has {len(turn_starts)} turns, at most {MAX_TURNS} are allowed")
    owner, last = 0, -1
    for sample, start in turn_starts.tolist():
        if not owner <= sample < len(responses) or not 0 <= start < responses[sample]:
            rule = "must be ordered by sample, and begin with a response token"
            raise _broken(f"turn_starts has {[sample, start]} after {[owner, last]}; turns {rule}")
        if sample == owner and start <= last:
            raise _broken(
                f"turn_starts has {[sample, start]} after {[owner, last]}; turns of a sample follow each other"
            )
        owner, last = sample, start


def _broken(detail: str) -> DecodeError:
    return DecodeError("bad_buffer", f"experience: {detail}")
