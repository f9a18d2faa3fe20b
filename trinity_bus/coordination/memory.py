"""A bounded memory of values by name, one entry of the changelog for each: ``kind/<number>``."""

from collections.abc import Iterator
from typing import Any

from trinity_bus.coordination.journal import Journal


class Memory:
    """The values of the last ``capacity`` names, fewer where they are large. A name that is in keeps its value.

    Args:
        kind: First part of the keys of its entries.
        capacity: Most names.
        max_bytes: Most bytes of all values; the last one is kept whatever it takes.
        journal: Told of every change.
    """

    def __init__(self, kind: str, capacity: int, max_bytes: int, journal: Journal) -> None:
        self._kind = kind
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._journal = journal
        self._entries: dict[int, tuple[str, bytes]] = {}
        self._values: dict[str, bytes] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, name: str) -> bytes | None:
        """The value of a name that is remembered."""
        return self._values.get(name)

    def add(self, name: str, value: bytes) -> None:
        """Remembers a value; may forget the oldest."""
        if name in self._values:
            return
        number = next(reversed(self._entries), -1) + 1
        self._entries[number] = (name, value)
        self._values[name] = value
        self._bytes += len(value)
        self._journal.touch(f"{self._kind}/{number}")
        self._trim()

    def entry(self, number: int) -> tuple[str, bytes] | None:
        """A name and its value."""
        return self._entries.get(number)

    def keys(self) -> Iterator[str]:
        """The keys of all its entries."""
        return (f"{self._kind}/{number}" for number in self._entries)

    def restore(self, entries: dict[int, Any]) -> None:
        """Takes over the entries of a changelog."""
        self._entries = {number: (entries[number][0], entries[number][1]) for number in sorted(entries)}
        self._values = dict(self._entries.values())
        self._bytes = sum(map(len, self._values.values()))
        self._trim()

    def _trim(self) -> None:
        while len(self._entries) > 1 and (len(self._entries) > self._capacity or self._bytes > self._max_bytes):
            number = next(iter(self._entries))
            name, value = self._entries.pop(number)
            del self._values[name]
            self._bytes -= len(value)
            self._journal.touch(f"{self._kind}/{number}")
