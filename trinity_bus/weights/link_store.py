"""The store in which the two ends of a link meet: what one sets, the other is told over their channel.

torch's own store is a server that anyone who reaches its port can read and write; this one has no port.

::

    set: kept here, and sent --> the other side's wait or get receives it, and keeps it
    seal: the last entry, sent and received --> the channel is free; what is set from then on is kept here alone

Failures: those of the channel. Anything but setting, getting and waiting is refused: nothing of ours uses it.
"""

import threading
from datetime import timedelta

from torch.distributed import Store

from trinity_bus import awake
from trinity_bus.weights.channel import ENTRY, Channel, StoreEntry
from trinity_bus.weights.errors import WireError

MAX_ENTRIES = 256
_SEAL = "sealed"


class LinkStore(Store):  # type: ignore[misc]  # torch is not type-checked
    def __init__(self, channel: Channel, timeout_s: float) -> None:
        super().__init__()
        self._channel = channel
        self._timeout_s = timeout_s
        self._entries: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._sealed = False

    def set(self, key: str, value: bytes | str) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        with self._lock:
            self._entries[key] = data
            if not self._sealed:
                self._channel.send(ENTRY.encode(StoreEntry(key, data)))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._entries[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        deadline = awake.now() + (self._timeout_s if timeout is None else timeout.total_seconds())
        with self._lock:
            while not all(key in self._entries for key in keys):
                self.absorb(self._channel.receive(ENTRY.limit, deadline))

    def check(self, keys: list[str]) -> bool:
        return all(key in self._entries for key in keys)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    def has_extended_api(self) -> bool:
        return False

    def seal(self) -> None:
        """Say that the group is there, and wait until the other side says so.

        Whatever a group sets later is of no use to the other one's, and would come amid what is said there then.
        """
        deadline = awake.now() + self._timeout_s
        with self._lock:
            self._sealed = True
            self._channel.send(ENTRY.encode(StoreEntry(_SEAL, b"")))
            while self.absorb(self._channel.receive(ENTRY.limit, deadline)) != _SEAL:
                continue

    def absorb(self, body: bytes) -> str:
        entry = ENTRY.decode(body)
        if len(self._entries) >= MAX_ENTRIES:
            raise WireError("an entry too many for a store")
        self._entries[entry.key] = entry.value
        return entry.key
