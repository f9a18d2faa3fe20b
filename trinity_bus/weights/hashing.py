"""Hashing beside other work: threads take pieces of buffers while the next ones are made or arrive.

::

    (made) --enter--> HASHING --put, put, ...--> HASHING --leave: waits for the last--> (done, ``hexdigest`` holds)

The digest of the content is the SHA-256 of the SHA-256 of every piece, in order; a piece is ``PIECE`` bytes of one
buffer, or what is left of it. Pieces are independent, so several cores share the work where one core's SHA-256 is
slower than the wire. Which bytes belong to which buffer says the manifest, which is hashed with this digest: see
``manifest``.

Failures: a buffer that cannot be hashed (its device is gone) is raised where the context is left.
"""

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import torch

PIECE = 4 << 20
"""Bytes; large enough that handing one to a thread costs nothing beside hashing it."""
_MOST_THREADS = 4
"""More would take cores from what computes, and the wire is slower than four of them."""


class ContentHash:
    """Digest over buffers, in the order in which they are put. Leaving the context waits until all are hashed.

    Args:
        threads: How many pieces are hashed at once; by default, as many as there are cores, up to four.
    """

    def __init__(self, threads: int | None = None) -> None:
        count = min(_MOST_THREADS, len(os.sched_getaffinity(0))) if threads is None else threads
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="hash-weights")
        self._pieces: list[Future[bytes]] = []
        self._hexdigest = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._pool.shutdown(cancel_futures=kind is not None)
        if kind is None:
            self._hexdigest = hashlib.sha256(b"".join(piece.result() for piece in self._pieces)).hexdigest()

    def put(self, buffer: "torch.Tensor") -> None:
        """Take a uint8 tensor, which must stay as it is until the context is left."""
        for start in range(0, buffer.numel(), PIECE):
            self._pieces.append(self._pool.submit(_digest, buffer[start : start + PIECE]))

    def hexdigest(self) -> str:
        """Of all buffers; after the context was left."""
        return self._hexdigest


def _digest(piece: "torch.Tensor") -> bytes:
    return hashlib.sha256(piece.cpu().numpy()).digest()
