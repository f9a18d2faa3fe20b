"""Chunks: the parts of a version that are proven one by one, so that each can be passed on before the rest has come.

A chunk is a part of one bucket. Its hash is XXH3 of 128 bits, at the speed of memory: the trainer makes it in the same
pass as the checksum, and tells the hashes over the connection on which it has proven itself. Which hash answers whom:

=============================================  =================================================================
what changes bytes                             what finds it
=============================================  =================================================================
a wire, a memory, a member that is broken      the hash of the chunk: it goes no further, and who sent it is left
somebody who can make bytes with a given XXH3  the version's SHA-256, before anything is loaded, as on each other way
=============================================  =================================================================
"""

from collections.abc import Iterable, Sequence
from typing import Final

import xxhash

HASH_BYTES: Final = 16
PIECE: Final = 4 << 20  # Hashed at once for the checksum: no chunk is larger, and each divides it
MAX_CHUNKS: Final = 1 << 20  # of a version; one with more is passed on by nobody
_FINEST: Final = 256 << 10  # Small, because a version is late by one chunk for each member that passes it on
# Chunks of one size that may come before: then they are twice as large. 235 B parameters in bf16 have 370,000 so.
_COARSER: Final = 1 << 17
_A_BUCKET: Final = 256  # Chunks at most, of a bucket of the common size, as long as they are no larger than ``PIECE``
# Of a version: a chain of links is late by one of them for each member, and each costs some 0.1 ms at both ends
_PIECES: Final = 512
_MOST: Final = 4 * PIECE  # Bytes of a piece at most: it is to move within seconds over a slow wire, too

type Span = tuple[int, int, int]  # the index of a bucket, and where the chunk begins and ends there


def chunk_bytes(bucket_bytes: int, before: int) -> int:
    """Return the size of a bucket's chunks, with ``before`` bytes in those before it; the last may be smaller.

    It is known before the whole version is: buckets are hashed as they are made.
    """
    size = _FINEST
    while size < PIECE and (size * _A_BUCKET < bucket_bytes or size * _COARSER <= before):
        size *= 2
    return size


def spans(sizes: Iterable[int], bucket_bytes: int) -> list[Span]:
    found: list[Span] = []
    before = 0
    for bucket, nbytes in enumerate(sizes):
        size = chunk_bytes(bucket_bytes, before)
        found += [(bucket, start, min(start + size, nbytes)) for start in range(0, nbytes, size)]
        before += nbytes
    return found


def piece_bytes(nbytes: int) -> int:
    """Return how much of a version goes over a link at once; a chunk may have more."""
    return min(_MOST, nbytes // _PIECES)


def behind_piece(chunks: Sequence[Span], first: int, stop: int, nbytes: int) -> int:
    """Return the end of what is sent together with ``first``: its neighbours in its bucket, before ``stop``."""
    bucket, start, _ = chunks[first]
    end = first + 1
    while end < stop and chunks[end][0] == bucket and chunks[end][2] - start <= nbytes:
        end += 1
    return end


def chunk_hash(chunk: memoryview) -> bytes:
    return xxhash.xxh3_128_digest(chunk)
