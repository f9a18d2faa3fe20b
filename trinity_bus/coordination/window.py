"""A bounded memory of names: the last ``capacity`` that were added, and up to a block more.

Kept in the changelog block by block rather than name by name, so that it is restored from ``capacity / 128`` entries.
The block being filled is written anew at each change; with many names a transaction that costs little.
"""

from collections.abc import Iterator

from trinity_bus.coordination.journal import Journal

BLOCK_SIZE = 128


class Window:
    """The most recent names. A name that is in is not added again.

    Args:
        kind: First part of the keys of its entries: ``kind/<block number>``.
        capacity: Names that are surely remembered.
        journal: Told of every changed block.
    """

    def __init__(self, kind: str, capacity: int, journal: Journal) -> None:
        self._kind = kind
        self._capacity = capacity
        self._journal = journal
        self._blocks: dict[int, list[str]] = {}
        self._names: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        """Remembers ``name``; may forget the oldest block."""
        if name in self._names:
            return
        last = next(reversed(self._blocks), None)
        if last is None or len(self._blocks[last]) >= BLOCK_SIZE:
            last = 0 if last is None else last + 1
            self._blocks[last] = []
        self._blocks[last].append(name)
        self._names.add(name)
        self._journal.touch(f"{self._kind}/{last}")
        self._trim()

    def block(self, number: int) -> list[str] | None:
        """The names of a block, oldest first; None where there is no such block."""
        return self._blocks.get(number)

    def keys(self) -> Iterator[str]:
        """The keys of all its entries."""
        return (f"{self._kind}/{number}" for number in self._blocks)

    def restore(self, blocks: dict[int, list[str]]) -> None:
        """Takes over the blocks of a changelog; a smaller capacity than before forgets the oldest."""
        self._blocks = {number: list(blocks[number]) for number in sorted(blocks)}
        self._names = {name for names in self._blocks.values() for name in names}
        self._trim()

    def _trim(self) -> None:
        while self._blocks:
            oldest = next(iter(self._blocks))
            if len(self._names) - len(self._blocks[oldest]) < self._capacity:
                return
            self._names.difference_update(self._blocks.pop(oldest))
            self._journal.touch(f"{self._kind}/{oldest}")
