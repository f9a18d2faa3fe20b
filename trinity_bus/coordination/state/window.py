"""A bounded memory of names: the last ``capacity`` that were added, and up to a block more.

Kept in the changelog block by block rather than name by name, so that it is restored from ``capacity / 128`` entries.
The block being filled is written anew at each change; with many names a transaction that costs little.
"""

from trinity_bus.coordination.state.dirty_keys import DirtyKeys
from trinity_bus.coordination.state.tables import Table

BLOCK_SIZE = 128


class Window:
    """The most recent names, ``capacity`` at least. A name that is in is not added again."""

    def __init__(self, kind: str, capacity: int, dirty: DirtyKeys) -> None:
        self._capacity = capacity
        self._blocks: Table[list[str]] = Table(kind, list[str], dirty)
        self._names: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        if name in self._names:
            return
        last = next(reversed(self._blocks), "-1")
        block = self._blocks.get(last, [])
        if last == "-1" or len(block) >= BLOCK_SIZE:
            last, block = str(int(last) + 1), []
        block.append(name)
        self._blocks[last] = block
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
