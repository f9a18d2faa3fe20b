"""Hashing beside other work: a thread takes buffers in order while the next ones are made or arrive.

::

    (made) --enter--> HASHING --put, put, ...--> HASHING --leave: waits for the last--> (done, ``hexdigest`` holds)

Failures: a buffer that cannot be hashed (its device is gone) ends the thread; leaving raises what it raised.
"""

import hashlib
import queue
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import torch


class BackgroundHash:
    """SHA-256 over buffers, in the order in which they are put. Leaving the context waits until all are hashed."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._buffers: queue.SimpleQueue[torch.Tensor | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hash-weights", daemon=True)
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._buffers.put(None)
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def put(self, buffer: "torch.Tensor") -> None:
        """Take a uint8 tensor, which must stay as it is until the context is left."""
        self._buffers.put(buffer)

    def hexdigest(self) -> str:
        """Of all buffers; after the context was left."""
        return self._digest.hexdigest()

    def _run(self) -> None:
        while (buffer := self._buffers.get()) is not None:
            try:
                self._digest.update(buffer.cpu().numpy())
            except Exception as error:  # noqa: BLE001 - raised again where the context is left
                self._error = error
                return
