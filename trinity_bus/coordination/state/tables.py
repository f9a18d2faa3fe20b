"""Tables of the coordinator's state: what is put into one, changed or deleted, is written to the changelog.

::

    table[name] = row      a new entry, or another one        \
    row.field = value      an entry is written anew            >  the journal takes note of it
    del table[name]        the entry is gone                  /

A table is a dictionary of one kind of entries by their names. Nobody who changes the state has to think of the
changelog: rows take note of assignments to their fields, so whatever a row has in it that is not a number or a text is
not changed in place, but replaced.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Never, Protocol

from trinity_bus.coordination.state.codec import Value
from trinity_bus.coordination.state.store import StateStore

_MARK = "_mark"
_set = Value.__setattr__


class Row(Value, dict=True):
    """A value that is one entry of a table. An assignment to a field that changes it marks the entry as changed."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__struct_fields__:
            if getattr(self, name) == value:
                return
            mark = self.__dict__.get(_MARK)
            if mark is not None:
                mark()
        _set(self, name, value)

    def touch(self) -> None:
        """Mark the entry as changed: something in a field was changed in place, because it is too large to replace."""
        self.__dict__[_MARK]()


class Table[V](dict[str, V]):
    """Entries of one kind, by name: ``kind/<name>`` in the changelog. ``of``: the type of values."""

    def __init__(self, kind: str, of: Any, store: StateStore) -> None:
        super().__init__()
        self._prefix = f"{kind}/"
        self._of = of
        self._store = store
        self._touch = store.touch
        store.register(kind, self)

    def __setitem__(self, name: str, value: V) -> None:
        super().__setitem__(name, value)
        key = self._prefix + name
        if isinstance(value, Row):
            value.__dict__[_MARK] = partial(self._touch, key)
        self._touch(key)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._touch(self._prefix + name)

    def pop(self, name: str, *default: Any) -> Any:
        known = name in self
        value = super().pop(name, *default)
        if known:
            self._touch(self._prefix + name)
        return value

    def _refuse(self, *_: object, **__: object) -> Never:
        raise TypeError("entries of the state are put and deleted one by one")

    clear = popitem = setdefault = update = _refuse

    def body(self, name: str) -> Any:
        return self.get(name)

    def names(self) -> Iterator[str]:
        return iter(self)

    def load(self, bodies: dict[str, Any]) -> None:
        for name, plain in bodies.items():
            value = self._store.codec.build(self._of, plain)
            super().__setitem__(name, value)
            if isinstance(value, Row):
                value.__dict__[_MARK] = partial(self._touch, self._prefix + name)

    def sort(self, key: Callable[[str], Any] = int) -> None:
        """Put the entries into the order of their names, which are numbers unless ``key`` says otherwise."""
        ordered = {name: self[name] for name in sorted(self, key=key)}
        super().clear()
        super().update(ordered)


class Keyed[K](Protocol):
    @property
    def key(self) -> K: ...


class Group[K, V: Keyed[Any]](dict[K, V]):
    """Values by key that are one entry together. They are put and deleted; nothing else is done to them."""

    def __init__(self, mark: Callable[[], None]) -> None:
        super().__init__()
        self._mark = mark

    def add(self, value: V) -> None:
        super().__setitem__(value.key, value)
        self._mark()

    def __delitem__(self, key: K) -> None:
        super().__delitem__(key)
        self._mark()


class Groups[K, V: Keyed[Any]]:
    """Groups by name: each that is not empty is an entry, ``kind/<name>``."""

    def __init__(self, kind: str, of: type[V], store: StateStore) -> None:
        self._kind = kind
        self._of = of
        self._store = store
        self._groups: dict[str, Group[K, V]] = {}
        store.register(kind, self)

    def of(self, name: str) -> Group[K, V]:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(partial(self._store.touch, f"{self._kind}/{name}"))
        return group

    def find(self, name: str) -> list[V]:
        return list(self._groups.get(name, {}).values())

    def take(self, name: str) -> list[V]:
        taken = list(self._groups.pop(name, {}).values())
        if taken:
            self._store.touch(f"{self._kind}/{name}")
        return taken

    def __iter__(self) -> Iterator[V]:
        return (value for group in self._groups.values() for value in group.values())

    def body(self, name: str) -> Any:
        return self.find(name) or None

    def names(self) -> Iterator[str]:
        return (name for name, group in self._groups.items() if group)

    def load(self, bodies: dict[str, Any]) -> None:
        for name, plain in bodies.items():
            group = self.of(name)
            for value in self._store.codec.build(list[self._of], plain):  # type: ignore[name-defined]
                dict.__setitem__(group, value.key, value)


class Single[R: Row]:
    """A row that is always there, and an entry as soon as it differs from what it was at first."""

    def __init__(self, kind: str, row: R, store: StateStore) -> None:
        self.row = row
        self._first = row.but()
        self._store = store
        row.__dict__[_MARK] = partial(store.touch, kind)
        store.register(kind, self)

    def body(self, _: str) -> R | None:
        return None if self.row == self._first else self.row

    def names(self) -> Iterator[str]:
        return iter(() if self.row == self._first else ("",))

    def load(self, bodies: dict[str, Any]) -> None:
        """Take over the entry of a changelog; the row is still the same, for all who know it."""
        for plain in bodies.values():
            loaded = self._store.codec.build(type(self.row), plain)
            mark = self.row.__dict__.pop(_MARK)
            for name in loaded.__struct_fields__:
                setattr(self.row, name, getattr(loaded, name))
            self.row.__dict__.update(loaded.__dict__)
            self.row.__dict__[_MARK] = mark
