"""What one side of the socket between explorer and runner says: the frames of one turn of its event loop in one write.

::

    NOT CONNECTED: frames are kept --connected--> OPEN --closed, or the other side is gone--> CLOSED: frames are dropped

    OPEN:  send() --> COLLECTED --the loop turns, or FLUSH_BYTES are there--> written, all of them at once

A write is a system call, and wakes the other process up: one for each message costs several times what the message
itself does. What is collected when its process dies is lost, as it is on the socket.
"""

import asyncio

from trinity_bus.runtime.frames import Dialect

# So much is written at once, so that large frames are not copied once more.
FLUSH_BYTES = 64 << 10


class FrameWriter[M]:
    def __init__(self, dialect: Dialect[M]) -> None:
        self._dialect = dialect
        self._collected = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._closed = False
        self._due = False

    def connected(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._write()

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
        self._transport = None
        self._collected.clear()

    def _turned(self) -> None:
        self._due = False
        self._write()

    def _write(self) -> None:
        if self._transport is not None and self._collected:
            # The transport keeps what the socket does not take at once.
            collected, self._collected = self._collected, bytearray()
            self._transport.write(collected)
