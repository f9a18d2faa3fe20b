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
    """Who is told what a runner says."""

    def receive(self, link: "RunnerLink", body: bytes) -> None:
        """Note that a frame has come; raises ProtocolError where it must not say that."""

    def broken(self, link: "RunnerLink", why: str) -> None:
        """Note that it has said what it must not say."""

    def hung_up(self, link: "RunnerLink") -> None:
        """Note that its end of the socket is closed."""


class RunnerLink(asyncio.Protocol):
    """The socket to one runner. What is written before it is connected is kept.

    Args:
        owner: Told what comes.
        serial: The runner's.
        sock: Its socket, connected.
    """

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
        """Note that it is to end: it is not needed any more."""
        self.dismissed = True
        self.close()

    def send(self, message: messages.ToRunner) -> None:
        """Say something; raises ProtocolError where it is longer than any may be."""
        self._writer.send(message)

    def close(self) -> None:
        """Hear and say nothing any more."""
        self._closed = True
        self._writer.close()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Write what was kept."""
        # That of uvloop is not derived from it.
        self._transport = cast("asyncio.WriteTransport", transport)
        if self._closed:
            self._transport.abort()
        else:
            self._writer.connected(self._transport)

    def data_received(self, data: bytes) -> None:
        """Take in what the runner says."""
        try:
            for body in self._frames.feed(data):
                if self._closed:
                    return
                self._owner.receive(self, body)
        except ProtocolError as error:
            self._owner.broken(self, f"it broke the protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the runner is gone, or has closed its end."""
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
