"""Lists that only grow, kept in the changelog page by page: far fewer entries than items, and none written too often.

Accepted tasks are kept in pages of what was accepted between two writings of the changelog, 32 tasks or 64 KiB at most
(or one task, be it larger). A page is written once; ``ended/<page>`` says which of its tasks have ended, and both
entries go when all have. The results of a batch are kept in pages too; the last of them is written anew with each
result, until it is full.
"""

from collections.abc import Callable, Collection, Iterator

from trinity_bus.coordination.state.store import StateStore
from trinity_bus.coordination.state.tables import Table

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
