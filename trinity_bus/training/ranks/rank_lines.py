"""The line between rank 0 and another rank: whole messages, both ways, until one of the two ends it.

::

    OPEN --send, receive--> OPEN
      |--end(), or the other side's end-----------> ENDED: receive() is None, send() raises OSError
      '--a message over its limit: ProtocolError--> whoever reads ends it

A line to a process on this machine is a socket pair, here; one to a rank that a launcher has started is made by whoever
knows how to tell it from a stranger. One thread reads, one writes, and any may end it.
"""

import contextlib
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence

from trinity_bus.runtime.frames import head_of, read_frame
from trinity_bus.training.ranks.rank_protocol import LIMIT_S, SAMPLE_BYTES


class RankLine(ABC):
    @abstractmethod
    def send(self, bodies: Sequence[bytes]) -> None:
        """OSError where the other side has ended, or takes nothing; ProtocolError where one is too large."""

    @abstractmethod
    def receive(self, limit: int) -> bytes | None:
        """Wait, however long; None where the other side has ended, ProtocolError for what is over the limit or none."""

    @abstractmethod
    def end(self) -> None:
        """Wake who waits, on both sides. Safe to call twice."""

    @abstractmethod
    def close(self) -> None:
        """End it and let go of it, as the thread that reads."""


class PairLine(RankLine):
    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        # Of sends only: who reads waits as long as it takes.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(LIMIT_S), 0))
        self._file = end.makefile("rb")

    def send(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._socket.sendall(head_of(body, SAMPLE_BYTES) + body)

    def receive(self, limit: int) -> bytes | None:
        return read_frame(self._file, limit)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.end()
        self._file.close()
        self._socket.close()
