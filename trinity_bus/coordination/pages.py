"""Lists that only grow, kept in the changelog page by page: far fewer entries than items, and none written too often.

Accepted tasks are kept in pages of what was accepted between two writings of the changelog, 32 tasks or 64 KiB at most
(or one task, be it larger). A page is written once; ``ended/<page>`` says which of its tasks have ended, and both
entries go when all have. The results of a batch are kept in pages too; the last of them is written anew with each
result, until it is full.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from trinity_bus.coordination.journal import Journal

PAGE_ITEMS = 32
PAGE_BYTES = 64 << 10


@dataclass(slots=True)
class Page:
    """Packed items."""

    items: list[bytes] = field(default_factory=list)
    size: int = 0
    """Bytes of them."""

    def has_room(self, item: bytes) -> bool:
        """Whether the item may be added."""
        return not self.items or (len(self.items) < PAGE_ITEMS and self.size + len(item) <= PAGE_BYTES)

    def add(self, item: bytes) -> None:
        """Adds it."""
        self.items.append(item)
        self.size += len(item)


class Pages:
    """Items in the order in which they came."""

    def __init__(self) -> None:
        self._pages: list[Page] = []

    def __len__(self) -> int:
        return len(self._pages)

    def add(self, item: bytes) -> int:
        """Adds the item. Returns the number of its page: 0, 1, 2 ..."""
        if not self._pages or not self._pages[-1].has_room(item):
            self._pages.append(Page())
        self._pages[-1].add(item)
        return len(self._pages) - 1

    @property
    def size(self) -> int:
        """Bytes of all items."""
        return sum(page.size for page in self._pages)

    def page(self, number: int) -> list[bytes] | None:
        """The items of a page; None where there is none."""
        return self._pages[number].items if number < len(self._pages) else None

    def restore(self, pages: dict[int, list[bytes]]) -> None:
        """Takes over the pages of a changelog."""
        self._pages = [Page(items, sum(map(len, items))) for _, items in sorted(pages.items())]


@dataclass(slots=True)
class _TaskPage:
    page: Page = field(default_factory=Page)
    places: dict[str, int] = field(default_factory=dict)
    """Of the tasks that have not ended, by id."""
    ended: int = 0
    """A bit for each place whose task has ended."""


class TaskPages:
    """Accepted tasks that have not ended, and those that share a page with them.

    Args:
        journal: Told of every change.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._pages: dict[int, _TaskPage] = {}
        self._filling: int | None = None

    def add(self, order: int, task_id: str, packed: bytes) -> int:
        """Keeps an accepted task. Returns the number of its page: the ``order`` of the first task in it."""
        number = self._filling
        if number is None or number not in self._pages or not self._pages[number].page.has_room(packed):
            number = self._filling = order
            self._pages[number] = _TaskPage()
        page = self._pages[number]
        page.places[task_id] = len(page.page.items)
        page.page.add(packed)
        self._journal.touch(f"tasks/{number}")
        return number

    def turn(self) -> None:
        """What is accepted from now on goes to another page."""
        self._filling = None

    def remove(self, number: int, task_id: str) -> None:
        """A task has ended."""
        page = self._pages[number]
        page.ended |= 1 << page.places.pop(task_id)
        if not page.places:
            del self._pages[number]
            self._journal.touch(f"tasks/{number}")
        self._journal.touch(f"ended/{number}")

    def size(self, number: int, task_id: str) -> int:
        """Bytes of a packed task that has not ended."""
        page = self._pages[number]
        return len(page.page.items[page.places[task_id]])

    def items(self, number: int) -> list[bytes] | None:
        """The packed tasks of a page; None where there is no such page."""
        page = self._pages.get(number)
        return None if page is None else page.page.items

    def ended(self, number: int) -> int | None:
        """Which tasks of a page have ended, as bits; None where none has."""
        page = self._pages.get(number)
        return None if page is None or not page.ended else page.ended

    def keys(self) -> Iterator[str]:
        """The keys of all entries."""
        for number, page in self._pages.items():
            yield f"tasks/{number}"
            if page.ended:
                yield f"ended/{number}"

    def restore(self, number: int, items: list[bytes], ended: int, task_ids: dict[str, int]) -> None:
        """Takes over a page of a changelog; ``task_ids`` are the places of those that have not ended."""
        self._pages[number] = _TaskPage(Page(items, sum(map(len, items))), task_ids, ended)
