"""A member's port for other members that take the same version: it passes on what it receives, as soon as it is proven.

::

    CLOSED --open--> LISTENING --hold: a version begins to come--> PASSING ON --retire, hold--> ...
                                                                       |
    a member that has proven itself (``listener``) --> asks for the version, from a chunk on --> chunks (``frames``)

It listens on the address that it reaches the trainer from, and on no other. It is the ``trainer`` of a proof towards
those who come, by the secret of an announcement of the version that it passes on. It does not know their names, so all
of them together have as many connections as one member has with the trainer. Who loses one asks the trainer for another
source.
"""

import contextlib
import threading
from functools import partial
from typing import Final

from trinity_bus import awake
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.errors import LinkError
from trinity_bus.weights.listener import Keyring, PeerListener
from trinity_bus.weights.pull.frames import HeldVersion
from trinity_bus.weights.transport import Source
from trinity_bus.weights.wire import ANSWER, REQUEST, WeightsAnswer

_WAIT_S: Final = 2.0  # For a version that this member has been named as a source of, and does not know of yet


class Relay:
    """Passes one version on at a time. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._opening = threading.Lock()
        self._closed = False
        self._listener: PeerListener | None = None
        self._keyring = Keyring()
        self._version = (-1, "")  # whose announcements are in the keyring
        self._holding: HeldVersion | None = None

    def open(self, host: str, source: Source) -> int:
        """Listen, where it does not yet, on the interface ``host`` that leads to the trainer. Return the port."""
        with self._opening:
            if self._closed:
                raise LinkError("this member ends")
            if self._listener is not None and self._listener.address[0] != host:
                self._listener.close()
                self._listener = None
            if self._listener is None:
                self._keyring = Keyring()
                self._listener = PeerListener(
                    host,
                    (0,),
                    timeout_s=source.timeout_s,
                    attend=self._attend,
                    secrets=self._keyring,
                    together=True,
                )
            if self._version != (source.version, source.checksum):
                self._version = (source.version, source.checksum)
                self._keyring.clear()
            # Of "incarnation/epoch/explorer", all but the explorer.
            self._keyring.add(source.prefix.rpartition("/")[0] + "/", bytes.fromhex(source.secret))
            return self._listener.address[1]

    def hold(self, holding: HeldVersion) -> None:
        """Pass this version on from now on, as it comes."""
        self.retire()
        with self._changed:
            self._holding = holding
            self._changed.notify_all()

    def retire(self, holding: HeldVersion | None = None) -> None:
        """Pass nothing on any more, or only not ``holding``. Returns when nobody reads its bytes."""
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
        with self._opening:
            self._closed = True
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self.retire()

    def _attend(self, channel: Channel, who: str) -> bool:
        request = REQUEST.decode(channel.receive(REQUEST.limit))
        with self._changed:

            def is_held() -> bool:
                return self._holding is not None and self._holding.checksum == request.checksum

            awake.wait_in_thread(partial(self._changed.wait_for, is_held), _WAIT_S)
            holding = self._holding
        if holding is None or (holding.version, holding.checksum) != (request.version, request.checksum):
            channel.send(ANSWER.encode(WeightsAnswer(f"version {request.version} is not held here")))
            return False
        channel.send(ANSWER.encode(WeightsAnswer("")))
        # It is gone, or the version is: it asks the trainer for another source.
        with contextlib.suppress(LinkError):
            holding.send(channel, request.first)
            # What it has not read yet would be lost; it closes when it has all.
            channel.waits_for_more()
        return False
