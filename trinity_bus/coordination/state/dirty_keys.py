"""Which entries of the state changed since the changelog was last written."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from trinity_bus.coordination.state.codec import StateCodec


class Entries(Protocol):
    """Entries of one kind, by name."""

    def body(self, name: str) -> Any:
        """Return what is to be written of an entry; None: there is none."""

    def names(self) -> Iterable[str]: ...

    def load(self, bodies: dict[str, Any]) -> None:
        """Take over the entries of a changelog, from plain data."""


class DirtyKeys:
    """A set of keys in order of first change. What an entry holds is looked up when the changelog is taken.

    A key is ``kind`` or ``kind/name``. Tables register and touch keys, and nobody else.
    """

    def __init__(self) -> None:
        self.codec = StateCodec()
        self.kinds: dict[str, Entries] = {}
        self._keys: dict[str, None] = {}

    def register(self, kind: str, entries: Entries) -> None:
        self.kinds[kind] = entries

    def touch(self, key: str) -> None:
        self._keys[key] = None

    def take(self) -> list[str]:
        keys = list(self._keys)
        self._keys.clear()
        return keys

    def body(self, key: str) -> Any:
        kind, _, name = key.partition("/")
        return self.kinds[kind].body(name)

    def keys(self) -> Iterator[str]:
        for kind, entries in self.kinds.items():
            for name in entries.names():
                yield f"{kind}/{name}" if name else kind
