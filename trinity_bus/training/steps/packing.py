"""Samples to micro-batches: which go together, and how they become flat arrays. Pure numpy.

Micro-batches are packed: sequences lie one after another in one row, no token is padding, but for a few where ranks
share a row and each must have as many. A budget of tokens bounds the memory of a micro-batch; first-fit-decreasing
(Johnson, 1973) fills them, which needs at most 11/9 of the fewest possible plus one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from schemas.experience import Bool, Float32, Int32, UInt8
from schemas.groups.kept import KeptTokens, decode_kept

# That the loss computes: 16 MiB of float32 a temporary. There are never those of a whole micro-batch.
LOGITS_AT_ONCE: Final = 1 << 22
# Times as many on a GPU: products of a few rows, and a sum over the output layer for each, took a tenth of a step.
ON_GPU: Final = 32

# What a token takes in attention alone, of the memory of one that is computed: of SmolLM2 on a CPU 0.27, where queries,
# keys, values and what comes of them are float32; less on a GPU.
ATTENDED: Final = 0.3

type Int64 = NDArray[np.int64]


class TrainSample(Struct, frozen=True, kw_only=True, eq=False):
    """Arrays over the response have ``len(tokens) - prompt_length`` entries.

    A msgspec ``Struct``, as a step has thousands, and a frozen dataclass takes several times as long to fill.
    """

    # [tokens] prompt, then response
    tokens: Int32
    # At least 1: the first token has nothing before it that could predict it
    prompt_length: int
    # [response] True where the token is trained on
    mask: Bool
    advantages: Float32
    rollout_logprobs: Float32
    old_logprobs: Float32
    # [response]; either all samples of a step have them or none has
    ref_logprobs: Float32 | None = None
    # [response] what a critic expects from each on
    values: Float32 | None = None
    # [response] what it should have expected
    returns: Float32 | None = None
    # At which it was drawn; None where nobody knows
    temperature: float | None = None
    # [tokens, layers * k] the experts that each layer's router is to choose; None: what it finds best.
    routes: UInt8 | None = None
    # From which tokens each of the response was drawn, as its record has them; None: from all
    kept: UInt8 | None = None
    # What each of its trained tokens weighs beside those of others
    scale: float = 1.0
    # False where an example says it, and no policy drew it
    drawn: bool = True
    # Its place among all samples of the step's groups, where its figures by token are wanted: ``token_figures``.
    number: int | None = None
    # Of a preference: what its two samples are known by in the step; they are always in one micro-batch.
    pair: int | None = None

    @property
    def prompt_key(self) -> bytes:
        """The same of samples with the same prompt, and of no others."""
        return self.tokens[: self.prompt_length].tobytes()

    @property
    def trained_tokens(self) -> int:
        return int(np.count_nonzero(self.mask))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedArrays:
    """A micro-batch, all [tokens] but ``bounds``.

    Position ``i`` carries what concerns token ``i + 1`` of its sequence, which it predicts; the last position of a
    sequence weighs nothing.
    """

    tokens: Int64
    positions: Int64
    targets: Int64
    # True where the target is of a response: of nothing else is the log-probability wanted
    responses: Bool
    weight: Float32
    advantages: Float32
    rollout_logprobs: Float32
    old_logprobs: Float32
    ref_logprobs: Float32 | None
    temperatures: Float32
    # None where all are
    drawn: Bool | None
    # [sequences] of which preference each is; None where there are none
    pairs: Int32 | None
    # [sequences + 1] where each begins; the last entry is the number of tokens
    bounds: Int32
    longest: int
    # [tokens, layers * k]; None where a sample has none
    routes: UInt8 | None = None
    # From which tokens each target was drawn; None where no sample says it
    kept: KeptTokens | None = None
    # None where each token is computed
    shared: "SharedPrompts | None" = None


def first_fit_decreasing(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Pack items into bins, lists of indices. An item that is longer than the budget gets a bin of its own."""
    room: list[int] = []
    bins: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        for number, left in enumerate(room):
            if lengths[index] <= left:
                bins[number].append(index)
                room[number] -= lengths[index]
                break
        else:
            bins.append([index])
            room.append(budget - lengths[index])
    return bins


def units(samples: Sequence[TrainSample]) -> list[list[int]]:
    # The indices of samples that cannot be parted
    found: dict[tuple[bool, int], list[int]] = {}
    for index, sample in enumerate(samples):
        found.setdefault((False, index) if sample.pair is None else (True, sample.pair), []).append(index)
    return list(found.values())


def computed_tokens(samples: Sequence[TrainSample], *, share: bool) -> int:
    """Return the tokens that samples count as; with ``share`` each prompt is computed once, and attended to by all."""
    alike = [sample for sample in samples if share and sample.routes is None]
    once = sum({sample.prompt_key: sample.prompt_length for sample in alike}.values())
    again = sum(sample.prompt_length for sample in alike) - once
    return sum(len(sample.tokens) for sample in samples) - int(again * (1 - ATTENDED))


def micro_batches(
    samples: Sequence[TrainSample],
    budget: int,
    count: Callable[[int], int] = lambda fewest: fewest,
    *,
    share: bool = False,
) -> list[list[int]]:
    """Return the indices of the samples of each micro-batch.

    ``count`` says how many are wanted, given how many are needed at least. With ``share`` samples of one prompt are put
    together as far as half a budget goes, so that bins are filled as well as ever.
    """
    parts, sizes = _parts(samples, budget // 2, share=share)
    bins = first_fit_decreasing(sizes, budget)
    # Routers are told what to choose for all of a micro-batch or for none of it.
    told = [all(samples[i].routes is not None for unit in part for i in unit) for part in parts]
    bins = [alike for chosen in bins for kind in (True, False) if (alike := [p for p in chosen if told[p] is kind])]
    # Better a prompt computed twice than a micro-batch run again for nothing: parts are divided, units are not.
    of_units = [[unit for p in chosen for unit in parts[p]] for chosen in bins]
    return [[i for unit in chosen for i in unit] for chosen in divided(of_units, count(len(bins)))]


def _parts(samples: Sequence[TrainSample], most: int, *, share: bool) -> tuple[list[list[list[int]]], list[int]]:
    # Units that go together, with ``share`` those of a prompt, and the tokens that each part counts as: a prompt that
    # is not computed again is in attention all the same.
    found: dict[object, list[list[int]]] = {}
    for number, unit in enumerate(units(samples)):
        one = samples[unit[0]]
        alone = one.pair is not None or not share
        of = number if alone else (one.prompt_key, one.routes is None)
        found.setdefault(of, []).append(unit)
    parts: list[list[list[int]]] = []
    sizes: list[int] = []
    for alike in found.values():
        for unit in alike:
            one, whole = samples[unit[0]], sum(len(samples[i].tokens) for i in unit)
            again = whole if one.routes is not None else whole - int(one.prompt_length * (1 - ATTENDED))
            if unit is alike[0] or sizes[-1] + again > most:
                parts.append([])
                sizes.append(0)
                again = whole
            parts[-1].append(unit)
            sizes[-1] += again
    return parts, sizes


def divided[Item](bins: Sequence[list[Item]], wanted: int) -> list[list[Item]]:
    """Divide bins, those with the most items first, until there are as many as wanted, or no two items in any."""
    bins = list(bins)
    while len(bins) < wanted and len(largest := max(bins, key=len)) > 1:
        at, half = bins.index(largest), len(largest) // 2
        bins[at : at + 1] = [largest[:half], largest[half:]]
    return bins


def pack(
    samples: Sequence[TrainSample],
    *,
    token_weight: float,
    temperature: float = 1.0,
    multiple: int = 1,
    share: bool = False,
) -> PackedArrays:
    """Lay samples one after another.

    Args:
        token_weight: Weight of each trained token of a sample whose scale is 1.
        temperature: Of samples that do not say theirs.
        multiple: What the tokens of each are padded to a multiple of; padding comes after a sample, and weighs nothing.
        share: Whether prompts that are alike are computed once. They are not where routers are told what to choose.
    """
    own = np.array([len(sample.tokens) for sample in samples])
    prompts = np.array([sample.prompt_length for sample in samples])
    lengths = -(-own // multiple) * multiple
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    starts, total = bounds[:-1], int(bounds[-1])
    tokens, targets = np.zeros((2, total), np.int64)
    tokens[_runs(starts, own)] = np.concatenate([sample.tokens for sample in samples])
    targets[:-1] = tokens[1:]
    targets[bounds[1:] - 1] = 0
    responses = _runs(starts + prompts - 1, own - prompts)
    is_response = np.zeros(total, np.bool_)
    is_response[responses] = True

    def over_responses(values: Sequence[NDArray[Any]]) -> Float32:
        flat = np.zeros(total, np.float32)
        flat[responses] = np.concatenate(values)
        return flat

    weight = over_responses([sample.mask for sample in samples])
    weight *= np.repeat(np.array([token_weight * sample.scale for sample in samples], np.float32), lengths)
    routes = _routes(samples, lengths.tolist())
    references = [sample.ref_logprobs for sample in samples if sample.ref_logprobs is not None]
    return PackedArrays(
        tokens=tokens,
        positions=np.arange(total) - np.repeat(starts, lengths),
        targets=targets,
        responses=is_response,
        weight=weight,
        advantages=over_responses([sample.advantages for sample in samples]),
        rollout_logprobs=over_responses([sample.rollout_logprobs for sample in samples]),
        old_logprobs=over_responses([sample.old_logprobs for sample in samples]),
        ref_logprobs=over_responses(references) if references else None,
        bounds=bounds,
        longest=int(lengths.max()),
        routes=routes,
        kept=_kept(samples, responses, total) if any(sample.kept is not None for sample in samples) else None,
        shared=shared_prompts(samples, starts.tolist(), total, multiple) if share and routes is None else None,
        drawn=None if all(s.drawn for s in samples) else np.repeat([s.drawn for s in samples], lengths),
        pairs=(
            None if samples[0].pair is None else np.array([-1 if s.pair is None else s.pair for s in samples], np.int32)
        ),
        temperatures=np.repeat(
            np.array([temperature if s.temperature is None else s.temperature for s in samples], np.float32), lengths
        ),
    )


def _runs(starts: NDArray[Any], lengths: NDArray[Any]) -> Int64:
    # The places of runs, of which each begins somewhere and is so long, one after another
    ends = np.cumsum(lengths)
    places: Int64 = np.arange(ends[-1]) + np.repeat(starts - ends + lengths, lengths)
    return places


def lay(values: Sequence[Float32], arrays: PackedArrays, samples: Sequence[TrainSample]) -> Float32:
    """Return values of each response as values per position of a micro-batch: the inverse of :func:`unpack`."""
    flat = np.zeros(len(arrays.tokens), np.float32)
    for of_sample, sample, start in zip(values, samples, arrays.bounds[:-1].tolist(), strict=True):
        flat[start + sample.prompt_length - 1 : start + len(sample.tokens) - 1] = of_sample
    return flat


class SharedPrompts(NamedTuple):
    # [computed] positions of a micro-batch that a model computes, each prompt once
    computed: Int64
    # [tokens] where among these the states of each position are
    places: Int64


def shared_prompts(
    samples: Sequence[TrainSample], starts: Sequence[int], total: int, multiple: int
) -> SharedPrompts | None:
    """Find prompts that are alike, of samples that begin at ``starts``; None where no two are.

    What a model computes for a token hangs on the tokens before it alone, so one prompt stands for all. The number of
    computed positions is a multiple of ``multiple``; the last one is computed again for that.
    """
    first: dict[bytes, int] = {}
    same = np.arange(total)
    for sample, start in zip(samples, starts, strict=True):
        at = first.setdefault(sample.prompt_key, start)
        same[start : start + sample.prompt_length] = np.arange(at, at + sample.prompt_length)
    computed, places = np.unique(same, return_inverse=True)
    if len(computed) == total:
        return None
    return SharedPrompts(np.pad(computed, (0, -len(computed) % multiple), mode="edge"), places)


def _routes(samples: Sequence[TrainSample], lengths: Sequence[int]) -> UInt8 | None:
    # What is padded goes where the token before it goes
    known = [sample.routes for sample in samples if sample.routes is not None]
    if len(known) < len(samples):
        return None
    padding = [
        np.repeat(routes[-1:], length - len(routes), axis=0) for routes, length in zip(known, lengths, strict=True)
    ]
    return np.concatenate([rows for both in zip(known, padding, strict=True) for rows in both])


def _kept(samples: Sequence[TrainSample], responses: Int64, total: int) -> KeptTokens:
    sizes = [len(sample.mask) for sample in samples]
    sets = [decode_kept(bytes(n) if s.kept is None else s.kept, n) for s, n in zip(samples, sizes, strict=True)]
    counts = np.zeros(total, np.int64)
    counts[responses] = np.concatenate([found.counts for found in sets])
    return KeptTokens(counts, np.concatenate([found.ids for found in sets]))


def unpack(values: Float32, arrays: PackedArrays, samples: Sequence[TrainSample]) -> list[Float32]:
    """Cut each sample's response out of values per position of a micro-batch: the inverse of :func:`pack`."""
    return [
        values[start + sample.prompt_length - 1 : start + len(sample.tokens) - 1]
        for sample, start in zip(samples, arrays.bounds[:-1].tolist(), strict=True)
    ]


def gathered(
    passes: Iterable[tuple[Sequence[int], PackedArrays, Any]], samples: Sequence[TrainSample]
) -> dict[int, Float32]:
    """Return the values of each sample's response, by its index, from tensors of values per position."""
    found: dict[int, Float32] = {}
    for indices, arrays, values in passes:
        mine = [samples[i] for i in indices]
        found |= dict(zip(indices, unpack(values.cpu().numpy(), arrays, mine), strict=True))
    return found


def context_part(bounds: Int32, rank: int, ranks: int) -> Int64:
    """Return which tokens of a packed row one of several ranks holds; lengths are multiples of ``2 * ranks``.

    Of each sequence that is a part from the front and its mirror image from the back, as Megatron's rotary positions
    have it: so all ranks have as much to attend to.
    """
    parts = []
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        size = (end - start) // (2 * ranks)
        parts += [
            np.arange(start + rank * size, start + (rank + 1) * size),
            np.arange(end - (rank + 1) * size, end - rank * size),
        ]
    return np.concatenate(parts)
