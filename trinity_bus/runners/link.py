"""Either end of the socket between explorer and runner: the frames of one turn of its event loop in one write.

::

    NOT CONNECTED: frames are kept --connected--> OPEN --closed, or the other side is gone--> CLOSED: frames are dropped

    OPEN:  send() --> COLLECTED --the loop turns, or FLUSH_BYTES are there--> written, all of them at once

A write is a system call, and wakes the other process up: one for each message costs several times what the message
itself does. What is collected when its process dies is lost, as it is on the socket.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from trinity_bus.runners import messages
from trinity_bus.runners.messages import RequestRules
from trinity_bus.runtime.frames import Dialect, FrameReader, ProtocolError

# So much is written at once, so that large frames are not copied once more.
FLUSH_BYTES = 64 << 10


class FrameConnection[M](asyncio.Protocol):
    """``heard`` is given the body of each frame; ``over`` why it is over, None where the other side is gone."""

    def __init__(
        self,
        dialect: Dialect[M],
        limit: int,
        heard: Callable[[bytes], object],
        over: Callable[[ProtocolError | None], None],
    ) -> None:
        self._dialect = dialect
        self._frames = FrameReader(limit)
        self._heard = heard
        self._over = over
        self._collected = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._closed = False
        self._due = False

    async def open(self, sock: socket.socket) -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)

    def send(self, message: M) -> None:
        """Say something, unless it is closed; ProtocolError, and nothing sent, where it is longer than any may be."""
        if self._closed:
            return
        self._dialect.append(self._collected, message)
        if len(self._collected) >= FLUSH_BYTES:
            self._write()
        elif not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._turned)

    def close(self) -> None:
        self._closed = True
        self._collected.clear()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # That of uvloop is not derived from it.
        self._transport = cast("asyncio.WriteTransport", transport)
        if self._closed:
            self.close()
        self._write()

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                if self._closed:
                    return
                self._heard(body)
        except ProtocolError as error:
            self._over(error)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        if not self._closed:
            self.close()
            self._over(None)

    def _turned(self) -> None:
        self._due = False
        self._write()

    def _write(self) -> None:
        if self._transport is not None and self._collected:
            # The transport keeps what the socket does not take at once.
            collected, self._collected = self._collected, bytearray()
            self._transport.write(collected)


class RunnerLink(FrameConnection[messages.ToRunner]):
    """The explorer's end of the socket to one runner."""

    def __init__(
        self,
        serial: int,
        sock: socket.socket,
        heard: Callable[["RunnerLink", bytes], None],
        over: Callable[["RunnerLink", ProtocolError | None], None],
    ) -> None:
        super().__init__(
            messages.TO_RUNNER,
            messages.TO_EXPLORER.limit,
            lambda body: heard(self, body),
            lambda error: over(self, error),
        )
        self.serial = serial
        self.requests = RequestRules()
        self.dismissed = False
        self._connecting = asyncio.get_running_loop().create_task(self.open(sock))

    def dismiss(self) -> None:
        self.dismissed = True
        self.close()
