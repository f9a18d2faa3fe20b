"""Hashing beside other work: threads take pieces of buffers while the next ones are made or arrive.

::

    (made) --enter--> HASHING --put, put, ...--> HASHING --leave: waits for the last--> (done, ``hexdigest`` holds)

The digest of the content is the SHA-256 of the SHA-256 of every piece, in order; a piece is ``PIECE`` bytes of one
buffer, or what is left of it. Pieces are independent, so several cores share the work where one core's SHA-256 is
slower than the wire. Which bytes belong to which buffer says the manifest, which is hashed with this digest: see
``manifest``. The hashes of chunks (``chunks``) are made in the same pass, where somebody wants them.

Failures: a buffer that cannot be hashed (its device is gone) is raised where the context is left.
"""

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from trinity_bus.weights.chunks import PIECE, chunk_bytes, chunk_hash

if TYPE_CHECKING:
    import torch

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
        self._hexdigest = ""
        self.chunk_hashes = b""  # of all chunks, one after the other; after the context was left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._pool.shutdown(cancel_futures=kind is not None)
        if kind is None:
            digests = [piece.result() for piece in self._pieces]
            self._hexdigest = hashlib.sha256(b"".join(digest for digest, _ in digests)).hexdigest()
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
        return self._hexdigest


def _digest(piece: "torch.Tensor", size: int | None) -> tuple[bytes, bytes]:
    view = memoryview(piece.cpu().numpy())
    # The chunks first: what they have brought into the cache, the slower hash finds there.
    starts = range(0, 0 if size is None else len(view), size or 1)
    hashes = b"".join(chunk_hash(view[start : start + (size or 0)]) for start in starts)
    return hashlib.sha256(view).digest(), hashes
