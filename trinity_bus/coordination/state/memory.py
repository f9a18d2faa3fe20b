"""Bounded memories: of names, of values by name, and of averages."""

from typing import Any

from trinity_bus.coordination.state.store import StateStore
from trinity_bus.coordination.state.tables import Table

BLOCK_SIZE = 128


class Window:
    """The most recent names, ``capacity`` at least, and up to a block more. A name that is in is not added again.

    They are kept in the changelog block by block: the block being filled is written anew at each change.
    """

    def __init__(self, kind: str, capacity: int, store: StateStore) -> None:
        self._capacity = capacity
        self._blocks: Table[list[str]] = Table(kind, list[str], store)
        self._names: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        if name in self._names:
            return
        _append(self._blocks, name)
        self._names.add(name)
        self._trim()

    def rebuild(self) -> None:
        """Find the names in the blocks of a changelog; a smaller capacity than before forgets the oldest."""
        self._blocks.sort()
        self._names = {name for names in self._blocks.values() for name in names}
        self._trim()

    def _trim(self) -> None:
        while self._blocks:
            oldest = next(iter(self._blocks))
            if len(self._names) - len(self._blocks[oldest]) < self._capacity:
                return
            self._names.difference_update(self._blocks.pop(oldest))


class Averages:
    """An average for each of the keys that numbers came for last; the newest number of a key counts half.

    ``capacity`` averages are kept, and up to a block more, in the order of the numbers and in blocks as a window's.
    """

    def __init__(self, kind: str, capacity: int, store: StateStore) -> None:
        self._most_blocks = capacity // BLOCK_SIZE + 1
        self._blocks: Table[list[tuple[int, int]]] = Table(kind, list[tuple[int, int]], store)
        self._newest: dict[int, tuple[int, int]] = {}  # the last pair in the blocks of each key
        self._sum = 0  # of their averages

    def __len__(self) -> int:
        return len(self._newest)

    def add(self, key: int, number: int) -> None:
        """Take in a number, which is positive."""
        before = self._newest.get(key)
        pair = key, number if before is None else (before[1] + number + 1) // 2
        _append(self._blocks, pair)
        self._keep(pair)
        self._trim()

    def get(self, key: int) -> int:
        """Return the average of a key; 0 where none is kept."""
        pair = self._newest.get(key)
        return 0 if pair is None else pair[1]

    @property
    def mean(self) -> int:
        """The mean of all averages; 0 where none is kept."""
        return self._sum // len(self._newest) if self._newest else 0

    def rebuild(self) -> None:
        self._blocks.sort()
        for block in self._blocks.values():
            for pair in block:
                self._keep(pair)
        self._trim()

    def _keep(self, pair: tuple[int, int]) -> None:
        before = self._newest.get(pair[0])
        self._sum += pair[1] - (0 if before is None else before[1])
        self._newest[pair[0]] = pair

    def _trim(self) -> None:
        while len(self._blocks) > self._most_blocks:
            oldest: list[tuple[int, int]] = self._blocks.pop(next(iter(self._blocks)))
            for pair in oldest:
                if self._newest.get(pair[0]) is pair:
                    del self._newest[pair[0]]
                    self._sum -= pair[1]


class Memory[V]:
    """The values of the last ``capacity`` names, fewer where they are large. A name that is in keeps its value.

    Each is an entry of the changelog, ``kind/<number>``, and its value kept as bytes: of all values ``max_bytes`` at
    most, but the last one always. ``of``: the type of values.
    """

    def __init__(self, kind: str, of: Any, capacity: int, max_bytes: int, store: StateStore) -> None:
        self._of = of
        self._codec = store.codec
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._entries: Table[tuple[str, bytes]] = Table(kind, tuple[str, bytes], store)
        self._values: dict[str, bytes] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, name: str) -> V | None:
        packed = self._values.get(name)
        if packed is None:
            return None
        value: V = self._codec.decode(self._of, packed)
        return value

    def add(self, name: str, value: V) -> None:
        if name in self._values:
            return
        packed = self._codec.encode(value)
        self._entries[str(int(next(reversed(self._entries), "-1")) + 1)] = (name, packed)
        self._values[name] = packed
        self._bytes += len(packed)
        self._trim()

    def rebuild(self) -> None:
        self._entries.sort()
        self._values = dict(self._entries.values())
        self._bytes = sum(map(len, self._values.values()))
        self._trim()

    def _trim(self) -> None:
        while len(self._entries) > 1 and (len(self._entries) > self._capacity or self._bytes > self._max_bytes):
            name, packed = self._entries.pop(next(iter(self._entries)))
            del self._values[name]
            self._bytes -= len(packed)


def _append[I](blocks: Table[list[I]], item: I) -> None:
    # To the last block, or to another one where that is full.
    last = next(reversed(blocks), "-1")
    block = blocks.get(last, [])
    if last == "-1" or len(block) >= BLOCK_SIZE:
        last, block = str(int(last) + 1), []
    block.append(item)
    blocks[last] = block
