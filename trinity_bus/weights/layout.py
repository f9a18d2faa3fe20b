"""The one layout in which both sides see a model's bytes, and the hashes by which they are proven.

*Buckets.* Tensors are packed in the trainer's order; one that does not fit into what is left of a bucket opens the next
one, and one larger than a bucket gets one of its own. Offsets are multiples of 16, so that every tensor can be viewed
in place; the gaps are zeros, so that the checksum depends on the tensors alone.

*Chunks* are parts of a bucket that are proven one by one, so that each can be passed on before the rest has come. Their
hash, XXH3 of 128 bits, is as fast as memory and finds faults. Who forges it is found out by the version's SHA-256,
before anything is loaded.

*Content.* Its digest is the SHA-256 of the SHA-256 of every piece of ``PIECE`` bytes of a buffer, in order, so that
several cores share the work.

*Manifest:* JSON, which comes before the first byte of a version, and is checked before memory is taken for it. The
*checksum*, which is announced over the log, covers the layout, too, and not the number of the version::

    checksum = SHA-256( domain, SHA-256(names, dtypes, shapes, bucket size: canonical JSON), SHA-256 of the content )
"""

import hashlib
import math
import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Final, Self

import msgspec
import xxhash
from msgspec import Meta, Struct

# Hashed at once for the checksum: no chunk is larger, and each divides it
from trinity_bus.runtime.object_store import PIECE
from trinity_bus.weights.errors import ManifestError, WeightTransferError

if TYPE_CHECKING:
    import torch

ALIGNMENT = 16  # Bytes; at least the size of the largest element

# Bytes per element of each dtype that can travel, by torch's name.
ITEM_SIZES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


MAX_NAME_LENGTH = 512
MAX_DIMENSIONS = 8
MAX_TOTAL_BYTES = 4 << 40  # of a whole model, and so the most elements of one dimension


class TensorMeta(Struct, frozen=True, array_like=True, gc=False):
    """Name, dtype and shape of one tensor as it travels: in JSON the list ``[name, dtype, shape]``."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)]
    dtype: str  # a key of ``ITEM_SIZES``
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_TOTAL_BYTES)], ...], Meta(max_length=MAX_DIMENSIONS)]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]


class Slot(Struct, frozen=True, gc=False):
    meta: TensorMeta
    offset: int  # bytes from the start of the bucket


@dataclass(frozen=True, slots=True)
class Bucket:
    slots: tuple[Slot, ...]
    nbytes: int


def plan(metas: Iterable[TensorMeta], bucket_bytes: int) -> list[Bucket]:
    """Lay tensors out in order; ``bucket_bytes`` bounds buckets of more than one tensor."""
    if bucket_bytes <= 0:
        raise ValueError(f"bucket_bytes is {bucket_bytes}; it must be positive")
    buckets: list[Bucket] = []
    slots: list[Slot] = []
    end = 0
    for meta in metas:
        offset, size = -(-end // ALIGNMENT) * ALIGNMENT, meta.nbytes
        if slots and offset + size > bucket_bytes:
            buckets.append(Bucket(tuple(slots), end))
            slots, offset = [], 0
        slots.append(Slot(meta, offset))
        end = offset + size
    if slots:
        buckets.append(Bucket(tuple(slots), end))
    return buckets


HASH_BYTES: Final = 16
MAX_CHUNKS: Final = 1 << 21  # of a version: more than one of ``MAX_TOTAL_BYTES`` and ``MAX_TENSORS`` has
_FINEST: Final = 256 << 10  # Small, because a version is late by one chunk for each member that passes it on
# Chunks of one size that may come before: then they are twice as large. 235 B parameters in bf16 have 370,000 so.
_COARSER: Final = 1 << 17
_A_BUCKET: Final = 256  # Chunks at most, of a bucket of the common size, as long as they are no larger than ``PIECE``

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


def pieces(sizes: Iterable[int]) -> list[Span]:
    """Return the parts of buckets of these sizes whose SHA-256 make up the content's digest, in order."""
    return [
        (bucket, start, min(start + PIECE, nbytes))
        for bucket, nbytes in enumerate(sizes)
        for start in range(0, nbytes, PIECE)
    ]


def chunk_hash(chunk: memoryview) -> bytes:
    return xxhash.xxh3_128_digest(chunk)


_MOST_THREADS = 4  # More would take cores from what computes, and the wire is slower than four of them


class ContentHash:
    """Digest over buffers, in the order in which they are put. Leaving the context waits until all are hashed.

    With ``bucket_bytes``, of the version, its chunks are hashed as well.
    """

    def __init__(self, threads: int | None = None, *, bucket_bytes: int | None = None) -> None:
        count = min(_MOST_THREADS, len(os.sched_getaffinity(0))) if threads is None else threads
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="hash-weights")
        self._pieces: list[Future[tuple[bytes, bytes]]] = []
        self._bucket_bytes = bucket_bytes
        self._nbytes = 0
        # Of all pieces, and of all chunks, one after the other; after the context was left
        self.piece_digests = self.chunk_hashes = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._pool.shutdown(cancel_futures=kind is not None)
        if kind is None:
            digests = [piece.result() for piece in self._pieces]
            self.piece_digests = b"".join(digest for digest, _ in digests)
            self.chunk_hashes = b"".join(hashes for _, hashes in digests)

    def put(self, buffer: "torch.Tensor") -> list[Future[tuple[bytes, bytes]]]:
        """Take a uint8 tensor, which must stay as it is until all that is returned is done, or the context is left."""
        size = None if self._bucket_bytes is None else chunk_bytes(self._bucket_bytes, self._nbytes)
        self._nbytes += buffer.numel()
        pieces = [
            self._pool.submit(_digest, buffer[start : start + PIECE], size) for start in range(0, buffer.numel(), PIECE)
        ]
        self._pieces += pieces
        return pieces

    def hexdigest(self) -> str:
        return hashlib.sha256(self.piece_digests).hexdigest()


def _digest(piece: "torch.Tensor", size: int | None) -> tuple[bytes, bytes]:
    view = memoryview(piece.cpu().numpy())
    # The chunks first: what they have brought into the cache, the slower hash finds there.
    starts = range(0, 0 if size is None else len(view), size or 1)
    hashes = b"".join(chunk_hash(view[start : start + (size or 0)]) for start in starts)
    return hashlib.sha256(view).digest(), hashes


MAX_MANIFEST_BYTES = 16 << 20
MAX_TENSORS = 200_000
_DOMAIN = b"trinity-bus weights 1\n"


class TransferManifest(Struct, frozen=True, dict=True):
    version: Annotated[int, Meta(ge=0, le=MAX_TOTAL_BYTES)]
    content: Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z")]  # of the buckets' bytes
    bucket_bytes: Annotated[int, Meta(ge=1, le=MAX_TOTAL_BYTES)]
    tensors: Annotated[tuple[TensorMeta, ...], Meta(min_length=1, max_length=MAX_TENSORS)]

    @cached_property
    def checksum(self) -> str:
        """What is announced: a digest of layout and content, hex."""
        layout = msgspec.json.encode([self.bucket_bytes, self.tensors])
        return hashlib.sha256(_DOMAIN + hashlib.sha256(layout).digest() + bytes.fromhex(self.content)).hexdigest()

    def buckets(self) -> list[Bucket]:
        return plan(self.tensors, self.bucket_bytes)

    def check_content(self, digest: str) -> None:
        """Compare the digest of bytes that have come; WeightTransferError where they are others."""
        if digest != self.content:
            raise WeightTransferError(
                f"the bytes of version {self.version} have digest {digest}, announced was {self.content}"
            )

    def to_json(self) -> bytes:
        text = msgspec.json.encode(self)
        if len(text) > MAX_MANIFEST_BYTES:
            raise ManifestError(f"a manifest of {len(text)} bytes is over the limit of {MAX_MANIFEST_BYTES}")
        return text

    @staticmethod
    def from_json(text: bytes) -> "TransferManifest":
        """Parse and check; ManifestError where it is malformed or over a limit."""
        if len(text) > MAX_MANIFEST_BYTES:
            raise ManifestError(f"a manifest of {len(text)} bytes is over the limit of {MAX_MANIFEST_BYTES}")
        try:
            manifest = _decode_manifest(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ManifestError(f"the manifest cannot be read: {error}") from error
        tensors = manifest.tensors
        if unknown := {meta.dtype for meta in tensors} - ITEM_SIZES.keys():
            raise ManifestError(f"the manifest has dtype {min(unknown)[:100]!r}; known: {', '.join(ITEM_SIZES)}")
        if len({meta.name for meta in tensors}) != len(tensors):
            raise ManifestError("the manifest names a tensor twice")
        if sum(meta.nbytes for meta in tensors) > MAX_TOTAL_BYTES:
            raise ManifestError(f"the tensors are over the limit of {MAX_TOTAL_BYTES} bytes")
        return manifest


_decode_manifest = msgspec.json.Decoder(TransferManifest).decode
