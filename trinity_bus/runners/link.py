"""The explorer's end of one runner's socket, and the memory of its process."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Protocol, cast

from trinity_bus.runners import messages
from trinity_bus.runners.frame_writer import FrameWriter
from trinity_bus.runners.request_rules import RequestRules
from trinity_bus.runtime.frames import FrameReader, ProtocolError

_MIB = 1 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")


class LinkOwner(Protocol):
    def receive(self, link: "RunnerLink", body: bytes) -> None:
        """Note that a frame has come; raises ProtocolError where it must not say that."""

    def broken(self, link: "RunnerLink", why: str) -> None: ...

    def hung_up(self, link: "RunnerLink") -> None: ...


class RunnerLink(asyncio.Protocol):
    """The socket to one runner. What is written before it is connected is kept."""

    def __init__(self, owner: LinkOwner, serial: int, sock: socket.socket) -> None:
        self.serial = serial
        self.requests = RequestRules()
        self._owner = owner
        self._frames = FrameReader(messages.TO_EXPLORER.limit)
        self._writer = FrameWriter(messages.TO_RUNNER)
        self._closed = False
        self.dismissed = False
        self._transport: asyncio.WriteTransport | None = None
        loop = asyncio.get_running_loop()
        self._connecting = loop.create_task(loop.create_unix_connection(lambda: self, sock=sock))

    def dismiss(self) -> None:
        self.dismissed = True
        self.close()

    def send(self, message: messages.ToRunner) -> None:
        self._writer.send(message)

    def close(self) -> None:
        self._closed = True
        self._writer.close()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # That of uvloop is not derived from it.
        self._transport = cast("asyncio.WriteTransport", transport)
        if self._closed:
            self._transport.abort()
        else:
            self._writer.connected(self._transport)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                if self._closed:
                    return
                self._owner.receive(self, body)
        except ProtocolError as error:
            self._owner.broken(self, f"it broke the protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writer.close()
        if not self._closed:
            self._closed = True
            self._owner.hung_up(self)


def rss_mib(pid: int) -> float:
    """Return the memory of a process; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE / _MIB
    except OSError:
        return 0.0
