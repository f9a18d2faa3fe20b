"""Asking a trainer's server for a version: the member's end of ``server``.

::

    CLOSED --open: connect, ask, read the answer--> OPEN --fill: bytes as they come--> (done) --close--> CLOSED
                        |                             |
                        +--refused, late, cancelled---+--the trainer is gone or silent: LinkError

One connection for each version. Failures: a version that is gone is a ``VersionGoneError``; the explorer answers that
it did not get it and is named again for the newest. Every wait ends with the time limit, and within moments of being
cancelled.
"""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trinity_bus.weights.errors import LinkError, VersionGoneError
from trinity_bus.weights.feed import Offer, Source
from trinity_bus.weights.manifest import TransferManifest
from trinity_bus.weights.wire import LENGTH, MAX_ANSWER_BYTES, Answer, Request, body_length

if TYPE_CHECKING:
    import torch

_SLICE_S = 0.05
"""How long a wait may take to notice that it was cancelled."""


class PullFeed:
    """A ``Feed`` from a trainer's server. It is used for one version."""

    device = "cpu"

    def __init__(self) -> None:
        self._connection: socket.socket | None = None
        self._cancelled = threading.Event()
        self._timeout_s = 0.0

    def open(self, source: Source, held: str | None, cancelled: threading.Event) -> Offer:
        """See ``Feed``.

        Raises:
            VersionGoneError: The trainer refused.
            LinkError: It does not answer.
            ManifestError: It offers something else.
        """
        self._cancelled, self._timeout_s = cancelled, source.timeout_s
        try:
            self._connection = socket.create_connection((source.host, source.port), timeout=source.timeout_s)
            self._connection.sendall(Request(source.version, source.checksum, held, source.prefix).pack())
            self._connection.setblocking(False)
        except OSError as error:
            raise LinkError(f"no trainer answers at {source.host}:{source.port}: {error}") from error
        prefix = bytearray(LENGTH.size)
        self._receive(memoryview(prefix))
        body = bytearray(body_length(bytes(prefix), MAX_ANSWER_BYTES))
        self._receive(memoryview(body))
        answer = Answer.unpack(bytes(body))
        if answer.refusal:
            raise VersionGoneError(f"the trainer refused: {answer.refusal}")
        manifest = TransferManifest.from_json(answer.manifest)
        source.check(manifest)
        return Offer(manifest, answer.changes)

    def fill(self, buffers: "Sequence[torch.Tensor]", arrived: Callable[[int], None]) -> None:
        """See ``Feed``."""
        for i, buffer in enumerate(buffers):
            self._receive(memoryview(buffer.numpy()))
            arrived(i)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None

    def _receive(self, view: memoryview) -> None:
        """Fill ``view``.

        Raises:
            LinkError: The other side closed, is silent for too long, or the transfer was cancelled.
        """
        connection = self._connection
        assert connection is not None  # noqa: S101 - ``open`` made it
        filled = 0
        deadline = time.monotonic() + self._timeout_s
        try:
            while filled < len(view):
                if self._cancelled.is_set():
                    raise LinkError("the transfer was cancelled")
                try:
                    count = connection.recv_into(view[filled:])
                except BlockingIOError:
                    _wait(connection, deadline)
                    continue
                if count == 0:
                    raise LinkError("the trainer closed the connection")
                filled += count
                deadline = time.monotonic() + self._timeout_s
        except OSError as error:
            if isinstance(error, LinkError):
                raise
            raise LinkError(f"the connection broke: {error}") from error


def _wait(connection: socket.socket, deadline: float) -> None:
    """Return as soon as there is something to receive, or a little later."""
    if time.monotonic() > deadline:
        raise LinkError("the deadline passed while the trainer was silent")
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.poll(_SLICE_S * 1000)
