"""A bounded memory of values by name, one entry of the changelog for each: ``kind/<number>``."""

from trinity_bus.coordination.state.dirty_keys import DirtyKeys
from trinity_bus.coordination.state.tables import Table


class Memory:
    """The values of the last ``capacity`` names, fewer where they are large. A name that is in keeps its value.

    Of ``max_bytes`` at most in all; the last one is kept whatever it takes.
    """

    def __init__(self, kind: str, capacity: int, max_bytes: int, dirty: DirtyKeys) -> None:
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._entries: Table[tuple[str, bytes]] = Table(kind, tuple[str, bytes], dirty)
        self._values: dict[str, bytes] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, name: str) -> bytes | None:
        return self._values.get(name)

    def add(self, name: str, value: bytes) -> None:
        if name in self._values:
            return
        self._entries[str(int(next(reversed(self._entries), "-1")) + 1)] = (name, value)
        self._values[name] = value
        self._bytes += len(value)
        self._trim()

    def rebuild(self) -> None:
        self._entries.sort()
        self._values = dict(self._entries.values())
        self._bytes = sum(map(len, self._values.values()))
        self._trim()

    def _trim(self) -> None:
        while len(self._entries) > 1 and (len(self._entries) > self._capacity or self._bytes > self._max_bytes):
            name, value = self._entries.pop(next(iter(self._entries)))
            del self._values[name]
            self._bytes -= len(value)
