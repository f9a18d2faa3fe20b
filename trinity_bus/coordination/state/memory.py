"""Bounded memories of names, of values by name and of averages, and lists that only grow, page by page.

Accepted tasks are kept in pages of what was accepted between two writings of the changelog, 32 tasks or 64 KiB at most
(or one task, be it larger). A page is written once; ``ended/<page>`` says which of its tasks have ended, and both
entries go when all have. The results of a batch are kept in pages too; the last of them is written anew with each
result, until it is full.
"""

from collections.abc import Callable, Collection, Iterator
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


PAGE_ITEMS = 32
PAGE_BYTES = 64 << 10

type Page = list[bytes]  # packed items


def _has_room(page: Page, item: bytes) -> bool:
    return not page or (len(page) < PAGE_ITEMS and sum(map(len, page)) + len(item) <= PAGE_BYTES)


class ResultPages:
    def __init__(self, store: StateStore) -> None:
        self._table: Table[Page] = Table("results", list[bytes], store)
        self._pages: dict[str, list[Page]] = {}

    def add(self, batch_id: str, item: bytes) -> None:
        pages = self._pages.setdefault(batch_id, [])
        if not pages or not _has_room(pages[-1], item):
            pages.append([])
        pages[-1].append(item)
        self._table[f"{len(pages) - 1}/{batch_id}"] = pages[-1]

    def size(self, batch_id: str) -> int:
        return sum(map(len, self.of(batch_id)))

    def remove(self, batch_id: str) -> None:
        for number in range(len(self._pages.pop(batch_id, ()))):
            del self._table[f"{number}/{batch_id}"]

    def of(self, batch_id: str) -> Iterator[bytes]:
        return (item for page in self._pages.get(batch_id, ()) for item in page)

    def rebuild(self) -> Collection[str]:
        """Find the pages of a changelog, as they were, whatever would fit into one now. Return their batches."""
        numbered = sorted((int(name.partition("/")[0]), name) for name in self._table)
        for number, name in numbered:
            pages = self._pages.setdefault(name.partition("/")[2], [])
            if len(pages) != number:
                raise ValueError(f"results {name} come after page {len(pages) - 1}")
            pages.append(self._table[name])
        return self._pages.keys()


class TaskPages:
    """Accepted tasks that have not ended, and those that share a page with them."""

    def __init__(self, store: StateStore) -> None:
        self._items: Table[Page] = Table("tasks", list[bytes], store)
        self._ended: Table[int] = Table("ended", int, store)  # of each page, a bit for each place whose task has ended
        self._places: dict[str, dict[str, int]] = {}  # of each page, those of the tasks that have not ended, by id
        self._filling = ""

    def add(self, order: int, task_id: str, packed: bytes) -> str:
        """Keep an accepted task. Return the name of its page: the ``order`` of the first task in it."""
        page = self._items.get(self._filling)
        if page is None or not _has_room(page, packed):
            page, self._filling = [], str(order)
            self._places[self._filling] = {}
        self._places[self._filling][task_id] = len(page)
        page.append(packed)
        self._items[self._filling] = page
        return self._filling

    def turn(self) -> None:
        """Note that what is accepted from now on goes to another page."""
        self._filling = ""

    def remove(self, name: str, task_id: str) -> None:
        places = self._places[name]
        place = places.pop(task_id)
        if places:
            self._ended[name] = self._ended.get(name, 0) | 1 << place
            return
        del self._places[name], self._items[name]
        self._ended.pop(name, None)

    def rebuild(self, open_tasks: Callable[[str, bytes], str]) -> None:
        """Find the pages of a changelog; ``open_tasks`` gets each page and open task, and returns its id."""
        if not self._ended.keys() <= self._items.keys():
            raise ValueError("tasks have ended that are not there")
        for name, items in self._items.items():
            ended = self._ended.get(name, 0)
            self._places[name] = {
                open_tasks(name, item): place for place, item in enumerate(items) if not ended >> place & 1
            }
