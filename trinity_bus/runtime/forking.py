"""Forking for an owner: what the two processes say to each other, a message a datagram, and the side that forks.

::

    owner                                      fork server: one thread
       │ an order, with what is passed on ──────> │  forks
       │ <────────────── ChildForked(serial, pid) │
       │ SignalChild(serial, number) ───────────> │  nothing happens where it has ended
       │ <───────────── ChildExited(serial, code) │  once for each that was ordered, also where it could not be forked

When the owner's end is closed, or the owner dies, the fork server ends, and with it all that it has forked.
"""

import contextlib
import os
import select
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from trinity_bus.runtime.frames import Dialect
from trinity_bus.runtime.guard import HeardSignals


class SignalChild(Struct, tag="signal", frozen=True):
    serial: int
    number: int


class ChildForked(Struct, tag="forked", frozen=True):
    serial: int
    pid: int


class ChildExited(Struct, tag="exited", frozen=True):
    """A child has ended, and so have all processes that it had started."""

    serial: int
    code: int  # minus the signal's number where one killed it
    error: str = ""  # why it could not be forked, where it could not


class Forking[Order](ABC):
    """Forks for the owner at the other end of a channel. In ``orders`` it hears, in ``news`` it tells."""

    def __init__(self, channel: socket.socket, orders: Dialect[Order | SignalChild], news: Dialect[Any]) -> None:
        self._channel = channel
        self._orders = orders
        self._news = news
        self._children: dict[int, int] = {}  # serial to process id
        self._ended = HeardSignals(signal.SIGCHLD)

    def run(self) -> tuple[Order, Sequence[int]] | None:
        """Serve until the owner is gone: None; in a forked process, return its order, and what was passed with it."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._ended, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._ended.fileno() in ready:
                self._ended.take()
                self._reap()
            if self._channel.fileno() not in ready:
                continue
            datagram, passed, _, _ = socket.recv_fds(self._channel, self._orders.limit, 3)
            if not datagram:
                return None
            order = self._orders.decode(datagram)
            if isinstance(order, SignalChild):
                # Not yet reaped, so the process id is still its own.
                if order.serial in self._children:
                    os.kill(self._children[order.serial], order.number)
            elif self._fork(order, passed):
                return order, passed

    @abstractmethod
    def _fork(self, order: Order, passed: Sequence[int]) -> bool:
        """Fork a child, whose process id goes into ``_children``; True in it, where nothing of this is left."""

    @abstractmethod
    def _reap(self) -> None:
        """Tell of the children that have ended."""

    def tell(self, message: Any) -> None:
        # Where the owner is gone, this process is about to be.
        with contextlib.suppress(ConnectionError):
            self._channel.send(self._news.encode(message))

    def _let_go(self) -> None:
        # In a forked process, of what is the forking one's.
        self._channel.close()
        self._ended.close()
