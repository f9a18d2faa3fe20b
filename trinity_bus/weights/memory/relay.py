"""A member's port for other members of the same announcement: it passes on what it takes, as soon as that is proven.

::

    CLOSED --open--> LISTENING --hold: a version begins to come--> PASSING ON --retire, hold--> ...
                                                                       |
    a member that has proven itself (``listener``) --> asks for the version, from a chunk on --> chunks (``carrier``)

It listens on the address that it reaches the trainer from, and on no other: on one machine, that is loopback. It is the
``trainer`` of a proof towards those who come, by the secret of the announcement, so nobody else is let in. It does not
know their names, so all of them together have as many connections as one member has with the trainer: the newest ones.
Failures: a connection that ends. Those who lose it ask the trainer for another holder.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from trinity_bus.weights.carrier import Carrier
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.errors import LinkError
from trinity_bus.weights.listener import PeerListener
from trinity_bus.weights.memory.frames import FrameCarrier
from trinity_bus.weights.memory.held_version import HeldVersion
from trinity_bus.weights.transport import Source
from trinity_bus.weights.wire import ANSWER, REQUEST, WeightsAnswer

_WAIT_S: Final = 2.0
"""For a version that this member has been named as a holder of, and has not been told so yet."""


class _Announcement:
    """Whom a relay lets in: the members of the last announcement that its own member follows."""

    def __init__(self) -> None:
        self._known = ("", b"")

    def follow(self, source: Source) -> None:
        """Let the other members in, and those of the announcement before no more."""
        # Of "incarnation/epoch/explorer", all but the explorer.
        self._known = (source.prefix.rpartition("/")[0] + "/", bytes.fromhex(source.secret))

    def find(self, who: str, is_right: Callable[[bytes], bool], deadline: float) -> bytes | None:
        """See ``listener.Secrets``. Whoever comes has been sent by the trainer, so there is nothing to wait for."""
        del deadline
        prefix, secret = self._known
        return secret if secret and who.startswith(prefix) and is_right(secret) else None

    def close(self) -> None:
        """Nobody is let in any more."""
        self._known = ("", b"")


class Relay:
    """Passes one version on at a time. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._opening = threading.Lock()
        self._closed = False
        self._listener: PeerListener | None = None
        self._announcement = _Announcement()
        self._holding: HeldVersion | None = None
        self._carrier: Carrier = FrameCarrier()

    def open(self, host: str, source: Source) -> int:
        """Listen, where it does not yet. Return the port.

        Args:
            host: Address of this machine's interface that leads to the trainer.
            source: The announcement whose members are let in from now on.

        Raises:
            LinkError: Nothing can listen there, or it is closed.
        """
        with self._opening:
            if self._closed:
                raise LinkError("this member ends")
            if self._listener is not None and self._listener.address[0] != host:
                self._listener.close()
                self._listener = None
            if self._listener is None:
                self._announcement = _Announcement()
                self._listener = PeerListener(
                    host,
                    (0,),
                    timeout_s=source.timeout_s,
                    attend=self._attend,
                    secrets=self._announcement,
                    together=True,
                )
            self._announcement.follow(source)
            return self._listener.address[1]

    def hold(self, holding: HeldVersion, carrier: Carrier) -> None:
        """Pass this version on from now on, as it comes, by what carries it."""
        self.retire()
        with self._changed:
            self._holding, self._carrier = holding, carrier
            self._changed.notify_all()

    def retire(self, holding: HeldVersion | None = None) -> None:
        """Pass nothing on any more. Returns when nobody reads its bytes.

        Args:
            holding: Where given, nothing happens unless it is what is passed on.
        """
        with self._changed:
            if holding is not None and holding is not self._holding:
                return
            holding, self._holding = self._holding, None
            listener = self._listener
        if holding is not None:
            if listener is not None:
                listener.cut()
            holding.retire()

    def close(self) -> None:
        """Stop listening."""
        with self._opening:
            self._closed = True
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self.retire()

    def _attend(self, channel: Channel, who: str) -> bool:
        """Serve one member, in a thread of its own; the connection is not kept."""
        request = REQUEST.decode(channel.receive(REQUEST.limit))
        deadline = time.monotonic() + _WAIT_S
        with self._changed:
            while (holding := self._holding) is None or holding.checksum != request.checksum:
                if not self._changed.wait(deadline - time.monotonic()):
                    break
        if holding is None or (holding.version, holding.checksum) != (request.version, request.checksum):
            channel.send(ANSWER.encode(WeightsAnswer(f"version {request.version} is not held here")))
            return False
        channel.send(ANSWER.encode(WeightsAnswer("")))
        # It is gone, or the version is: it asks the trainer for another holder.
        with contextlib.suppress(LinkError), contextlib.closing(self._carrier.sender(channel)) as sender:
            sender.chunks(holding, request.first)
            # What it has not read yet would be lost with the link; it closes when it has all.
            channel.waits_for_more()
        return False
