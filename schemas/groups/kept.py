"""From which tokens each response token was drawn: the sets that top-p, top-k and min-p have kept, as bytes. Pure.

::

    a response    the set of its first token, of its second, ...
    a set         how many tokens it has (0: all that there are, or nobody knows); the lowest id; of each other id the
                  distance from the one below it
    a number      LEB128: seven bits a byte, the lowest first; the highest bit of a byte says that another one follows

So the sets of two parts of a response follow each other as their bytes do, and ``bytes(n)`` are n tokens without one.

Failures: bytes that are no sets of so many tokens are a ValueError.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_KEPT_BYTES = 4 << 20  # of one sample; no more than as many numbers
GROUP_KEPT_BYTES = 16 << 20  # of all samples of a group, and of all responses to one request
_MAX_NUMBER_BYTES = 5
_MOST = 2**31 - 1

type _Int64 = NDArray[np.int64]


class KeptTokens(NamedTuple):
    counts: _Int64  # [tokens] how many each was drawn from; 0: all, or nobody knows
    ids: _Int64  # [sum of counts] ascending within a set

    def of(self, tokens: _Int64) -> "KeptTokens":
        """Return the sets of some tokens, in their order."""
        counts = self.counts[tokens]
        starts = (np.cumsum(self.counts) - self.counts)[tokens]
        places = np.arange(counts.sum()) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        return KeptTokens(counts, self.ids[places])


def encode_kept(sets: KeptTokens) -> bytes:
    """ValueError where the ids of a set do not ascend, or are no token ids."""
    counts, ids = sets
    heads = np.cumsum(counts) - counts
    distances = np.diff(ids, prepend=0)
    firsts = heads[counts > 0]
    distances[firsts] = ids[firsts]
    _check(ids, distances, firsts)
    numbers = np.insert(distances, heads, counts)
    sizes = np.ones(len(numbers), np.int64)
    for size in range(1, _MAX_NUMBER_BYTES):
        sizes += numbers >= 1 << 7 * size
    starts = np.cumsum(sizes) - sizes
    octets = np.empty(sizes.sum(), np.uint8)
    for place in range(_MAX_NUMBER_BYTES):
        here = sizes > place
        goes_on = (sizes[here] > place + 1).astype(np.int64) << 7
        octets[starts[here] + place] = (numbers[here] >> 7 * place) & 127 | goes_on
    return octets.tobytes()


def decode_kept(kept: Any, tokens: int) -> KeptTokens:
    """Return the sets of ``tokens`` response tokens from a buffer of bytes."""
    numbers = _numbers(np.frombuffer(kept, np.uint8))
    # Each set says where the next one begins: a list is walked faster than an array.
    walked, heads, at = numbers.tolist(), list[int](), 0
    for token in range(tokens):
        if at >= len(walked):
            raise ValueError(f"sets of kept tokens of {token} of {tokens} response tokens")
        heads.append(at)
        at += 1 + walked[at]
    if at != len(walked):
        raise ValueError(f"sets of kept tokens with {at} numbers of {tokens} response tokens, in {len(walked)}")
    counts = numbers[heads]
    firsts = (np.cumsum(counts) - counts)[counts > 0]
    distances = np.delete(numbers, heads)
    sums = np.cumsum(distances)
    ids = sums - np.repeat((sums - distances)[firsts], counts[counts > 0])
    _check(ids, distances, firsts)
    return KeptTokens(counts, ids)


def extended(known: bytearray | None, tokens: int, more: bytes | bytearray | None, new: int) -> bytearray | None:
    """Add the sets of ``new`` tokens to those of ``tokens`` before them; None: of no one there are any."""
    if known is None and more is None:
        return None
    known = bytearray(tokens) if known is None else known
    known += bytes(new) if more is None else more
    return known


def small_enough(kept: Iterable[bytes | bytearray | None]) -> list[bytes | bytearray]:
    """Return the sets of several responses, or of none of them where there are too many bytes.

    Without those of the longest alone, a policy would learn from short and certain responses.
    """
    found = [each or b"" for each in kept]
    sizes = [*map(len, found)]
    fits = max(sizes, default=0) <= MAX_KEPT_BYTES and sum(sizes) <= GROUP_KEPT_BYTES
    return found if fits else [b""] * len(found)


def _check(ids: _Int64, distances: _Int64, firsts: _Int64) -> None:
    ascends = distances > 0
    ascends[firsts] = True
    if not ascends.all() or ids.min(initial=0) < 0 or ids.max(initial=0) > _MOST:
        raise ValueError("a set of kept tokens has an id twice, out of order, or that is none")


def _numbers(octets: NDArray[np.uint8]) -> _Int64:
    ends = np.flatnonzero(octets < 128) + 1  # no highest bit
    if len(octets) and (not len(ends) or ends[-1] != len(octets)):
        raise ValueError("sets of kept tokens that end amid a number")
    sizes = np.diff(ends, prepend=0)
    longest = int(sizes.max(initial=0))
    if longest > _MAX_NUMBER_BYTES:
        raise ValueError(f"sets of kept tokens with a number of {longest} bytes")
    if longest <= 1:
        return octets.astype(np.int64)
    starts = ends - sizes
    numbers = octets[starts].astype(np.int64) & 127
    for place in range(1, longest):
        here = np.flatnonzero(sizes > place)
        numbers[here] |= (octets[starts[here] + place].astype(np.int64) & 127) << 7 * place
    return numbers
