"""The whole state as entries of a changelog, and back.

The state is exactly the last value of every key, leaving out those whose last value is None. Time is not part of it:
after a restart every limit counts from the start again.

The entry ``level`` says what the state may hold; a state without it is of the oldest level. A state that begins from
nothing is of the newest: there is no program of the version before that could have to read it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from schemas.command import CommandError
from trinity_bus.coordination.state.codec import LEVEL_KEY, OLDEST_LEVEL, StateCodec, StateError, unpack


class Entries(Protocol):
    def body(self, name: str) -> Any:
        """Return what is to be written of an entry; None: there is none."""

    def names(self) -> Iterable[str]: ...

    def load(self, bodies: dict[str, Any]) -> None:
        """Take over the entries of a changelog, from plain data."""


class StateStore:
    """Entries of all kinds, and the keys of those that changed since the changelog was taken, in order of first change.

    A key is ``kind`` or ``kind/name``. What an entry holds is looked up when the changelog is taken.
    """

    def __init__(self) -> None:
        self.codec = StateCodec()
        self.kinds: dict[str, Entries] = {}
        self._touched: dict[str, None] = {}
        # Notes that an entry has changed. The dictionary's own method: a task changes seven.
        self.touch = self._touched.setdefault
        self._says_level = False  # whether the changelog has an entry that says the level
        # Entries of kinds that this program does not know: they stay where they are.
        self._unknown: dict[str, bytes] = {}

    def register(self, kind: str, entries: Entries) -> None:
        self.kinds[kind] = entries

    def take(self) -> list[str]:
        keys = list(self._touched)
        self._touched.clear()
        return keys

    def body(self, key: str) -> Any:
        kind, _, name = key.partition("/")
        return self.kinds[kind].body(name)

    def keys(self) -> Iterator[str]:
        for kind, entries in self.kinds.items():
            for name in entries.names():
                yield f"{kind}/{name}" if name else kind

    def changes(self) -> list[tuple[str, bytes | None]]:
        """Entries that changed since the last call, with their present values; None: no longer there."""
        keys = self.take()
        changed: list[tuple[str, bytes | None]] = []
        if keys and not self._says_level and self.codec.level > OLDEST_LEVEL:
            self._says_level = True
            changed.append((LEVEL_KEY, self._level_entry()))
        for key in keys:
            body = self.body(key)
            changed.append((key, None if body is None else self.codec.pack(body)))
        return changed

    def raise_level(self, level: int) -> tuple[CommandError | None, str]:
        """From now on the state may hold what a newer level allows; what is written otherwise now is written again.

        To be called in the course of a change, which the level is written with. Returns an error, and what to say.
        """
        before = self.codec.level
        if level > self.codec.newest:
            detail = f"the coordinator at work knows levels up to {self.codec.newest}, not {level}: upgrade it first"
            return "invalid", detail
        if level <= before:
            return None, f"the state has level {before} already"
        entries = dict(self.entries())
        self.codec.set_level(level)
        self._says_level = False
        for key, value in self.entries():
            if entries[key] != value:
                self.touch(key)
        return None, f"the state has level {level} now, {before} before"

    def entries(self) -> Iterator[tuple[str, bytes]]:
        if self._says_level:
            yield LEVEL_KEY, self._level_entry()
        yield from self._unknown.items()
        for key in self.keys():
            yield key, self.codec.pack(self.body(key))

    def load(self, entries: Iterable[tuple[str, bytes | None]], rebuild: Callable[[], None]) -> None:
        """Fill the tables from a changelog, in the order of its writing; ``rebuild`` finds again what follows."""
        latest: dict[str, bytes] = {}
        for key, value in entries:
            if value is None:
                latest.pop(key, None)
            else:
                latest[key] = value
        self._find_level(latest)
        kinds: dict[str, dict[str, Any]] = {kind: {} for kind in self.kinds}
        for key, value in latest.items():
            kind, _, name = key.partition("/")
            body = unpack(key, value)
            if kind in kinds:
                kinds[kind][name] = body
            else:
                self._unknown[key] = value
        try:
            for kind, bodies in kinds.items():
                self.kinds[kind].load(bodies)
            rebuild()
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, StateError):
                raise
            raise StateError(f"the coordinator's state contradicts itself: {error!r}") from error

    def _find_level(self, latest: dict[str, bytes]) -> None:
        value = latest.pop(LEVEL_KEY, None)
        if value is None:
            self.codec.set_level(OLDEST_LEVEL if latest else self.codec.newest)
            return
        level = unpack(LEVEL_KEY, value)
        if not isinstance(level, int):
            raise StateError(f"entry {LEVEL_KEY!r} of the coordinator's state is no number: {level!r}")
        self.codec.set_level(level)
        self._says_level = True

    def _level_entry(self) -> bytes:
        return self.codec.pack(self.codec.level, framing=self.codec.level)
