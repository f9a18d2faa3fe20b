"""Named batches that are not full: what they take, and which of them is given up when that is too much. Pure.

They hold up nobody, but they take room, in tasks, in bytes and in batches. When one of these is too much, the producer
that takes most of it gives up the batch of its own that got no task for the longest time. So a client that dies while
it fills batches costs the others nothing, and one that fills without end costs itself.
"""

from collections import Counter, OrderedDict

from trinity_bus.coordination.batches.batch import Batch


class Unfilled:
    def __init__(self, max_tasks: int, max_bytes: int, max_batches: int) -> None:
        self._max_tasks = max_tasks
        self._max_bytes = max_bytes
        self._max_batches = max_batches
        # Of each owner, the one that got no task for the longest time first.
        self._batches: dict[str, OrderedDict[str, Batch]] = {}
        self._tasks: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._taken: dict[str, tuple[int, int]] = {}  # tasks and bytes that each batch was counted with

    def __contains__(self, batch: Batch) -> bool:
        return batch.batch_id in self._taken

    def add(self, batch: Batch) -> None:
        self._batches.setdefault(batch.owner, OrderedDict())[batch.batch_id] = batch
        self._count(batch)

    def grew(self, batch: Batch) -> None:
        self._batches[batch.owner].move_to_end(batch.batch_id)
        self._count(batch)

    def shrank(self, batch: Batch) -> None:
        """Note that a task of one of them has ended: its bytes are free."""
        self._count(batch)

    def remove(self, batch: Batch) -> None:
        tasks, size = self._taken.pop(batch.batch_id)
        owner = batch.owner
        self._tasks[owner] -= tasks
        self._bytes[owner] -= size
        del self._batches[owner][batch.batch_id]
        if not self._batches[owner]:
            del self._batches[owner], self._tasks[owner], self._bytes[owner]

    def excess(self) -> Batch | None:
        """Return the batch that is to be given up; None while there is room."""
        if self._bytes.total() > self._max_bytes:
            use = self._bytes
        elif self._tasks.total() > self._max_tasks:
            use = self._tasks
        elif len(self._taken) > self._max_batches:
            use = Counter({owner: len(batches) for owner, batches in self._batches.items()})
        else:
            return None
        heaviest = max(use, key=lambda owner: (use[owner], owner))
        return next(iter(self._batches[heaviest].values()))

    def _count(self, batch: Batch) -> None:
        tasks, size = self._taken.get(batch.batch_id, (0, 0))
        self._taken[batch.batch_id] = batch.accepted, batch.size
        self._tasks[batch.owner] += batch.accepted - tasks
        self._bytes[batch.owner] += batch.size - size
