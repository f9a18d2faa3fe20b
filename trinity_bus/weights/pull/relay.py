"""A member's port for other members that take the same version: it passes on what it takes, as soon as that is proven.

::

    CLOSED --open--> LISTENING --hold: a version begins to come--> PASSING ON --retire, hold--> ...
                         ^                                             |
                         +--let_in: another announcement of it         |
                                                                       |
    a member that has proven itself (``listener``) --> asks for the version, from a chunk on --> chunks (``carrier``)

It listens on the address that it reaches the trainer from, and on no other: on one machine, that is loopback. It is the
``trainer`` of a proof towards those who come, by the secret of an announcement of the version that it passes on. It
does not know their names, so all of them together have as many connections as one member has with the trainer.

A version that has come whole is passed on until the next one begins to come, and the connection to the trainer is kept
for as long (``keep``): by its end, the trainer knows that there is a holder less.

Failures: a connection that ends. Those who lose it ask the trainer for another holder.
"""

import contextlib
import threading
from collections import deque
from typing import Final

from trinity_bus import awake
from trinity_bus.weights.carrier import Carrier, FrameCarrier, HeldVersion
from trinity_bus.weights.channel import Channel
from trinity_bus.weights.errors import LinkError
from trinity_bus.weights.listener import AwaitedSecrets, PeerListener
from trinity_bus.weights.transport import Source
from trinity_bus.weights.wire import ANSWER, REQUEST, WeightsAnswer

_ANNOUNCEMENTS: Final = 8  # of one version, whose members are let in: the newest ones
_WAIT_S: Final = 2.0  # For a version that this member has been named as a holder of, and does not know of yet


class _Announcements(AwaitedSecrets):
    def __init__(self) -> None:
        super().__init__()
        self._version = (-1, "")
        self._known: deque[tuple[str, bytes]] = deque(maxlen=_ANNOUNCEMENTS)

    def follow(self, source: Source) -> None:
        """Let the members of an announcement in, and those of other versions no more."""
        with self._changed:
            if self._version != (source.version, source.checksum):
                self._version = (source.version, source.checksum)
                self._known.clear()
        self.let_in(source)

    def let_in(self, source: Source) -> None:
        """Let the members of an announcement in, too, if it is of this version."""
        if not source.secret:
            return
        # Of "incarnation/epoch/explorer", all but the explorer.
        known = (source.prefix.rpartition("/")[0] + "/", bytes.fromhex(source.secret))
        with self._changed:
            if self._version == (source.version, source.checksum) and known not in self._known:
                self._known.append(known)
                self._changed.notify_all()

    def _secrets(self, who: str) -> list[bytes]:
        return [secret for prefix, secret in self._known if who.startswith(prefix)]


class Relay:
    """Passes one version on at a time. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._opening = threading.Lock()
        self._closed = False
        self._listener: PeerListener | None = None
        self._announcements = _Announcements()
        self._holding: HeldVersion | None = None
        self._carrier: Carrier = FrameCarrier()
        # by whose end the trainer knows that ``_holding`` is not passed on any more
        self._trainer: Channel | None = None

    def open(self, host: str, source: Source) -> int:
        """Listen, where it does not yet, on the interface ``host`` that leads to the trainer. Return the port."""
        with self._opening:
            if self._closed:
                raise LinkError("this member ends")
            if self._listener is not None and self._listener.address[0] != host:
                self._listener.close()
                self._listener = None
            if self._listener is None:
                self._announcements = _Announcements()
                self._listener = PeerListener(
                    host,
                    (0,),
                    timeout_s=source.timeout_s,
                    attend=self._attend,
                    secrets=self._announcements,
                    together=True,
                )
            self._announcements.follow(source)
            return self._listener.address[1]

    def let_in(self, source: Source) -> None:
        """Let the members of another announcement in, too, if it is of the version that is passed on."""
        with self._opening:
            self._announcements.let_in(source)

    def hold(self, holding: HeldVersion, carrier: Carrier) -> None:
        """Pass this version on from now on, as it comes, by what carries it."""
        self.retire()
        with self._changed:
            self._holding, self._carrier = holding, carrier
            self._changed.notify_all()

    def keep(self, holding: HeldVersion, trainer: Channel) -> None:
        """Keep the connection to the trainer for as long as this version is passed on; closes it where it is not."""
        with self._changed:
            if holding is self._holding:
                self._trainer = trainer
                return
        trainer.close()

    def retire(self, holding: HeldVersion | None = None) -> None:
        """Pass nothing on any more, or only not ``holding``. Returns when nobody reads its bytes."""
        with self._changed:
            if holding is not None and holding is not self._holding:
                return
            holding, self._holding = self._holding, None
            trainer, self._trainer = self._trainer, None
            listener = self._listener
        if trainer is not None:
            trainer.close()
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
        deadline = awake.now() + _WAIT_S
        with self._changed:
            while (holding := self._holding) is None or holding.checksum != request.checksum:
                if (left := deadline - awake.now()) <= 0:
                    break
                self._changed.wait(left)
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
