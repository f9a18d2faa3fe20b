"""Batches that have something to hand out: a line of each producer, the most urgent first.

A batch is in the queue of its owner while it may be handed out (RUNNING) and something of it is queued. Its place is
given by :func:`batch_priority`: train batch n, then eval batches whose id starts with the number n, then n + 1, then
others. Which producer's turn it is, is for :mod:`trinity_bus.coordination.batches.accounts` to say.
"""

import heapq
import math
import re
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Collection, Iterator

from schemas import BatchLifecycleState as State
from schemas import UnservedPool
from schemas.event import MAX_UNSERVED
from trinity_bus.coordination.batches.batch import Batch
from trinity_bus.coordination.batches.parts import Part
from trinity_bus.coordination.batches.tasks import OpenTask
from trinity_bus.coordination.pools import Kind

type BatchOrder = tuple[float, int]
type Priority = tuple[BatchOrder, bool, int]

_LEADING_DIGITS = re.compile(r"[0-9]+")


def sort_batch_id(batch_id: int | str) -> BatchOrder:
    """Sort key of a batch id: a train step's number, or a name.

    Step ``n`` comes before every name that starts with the digits ``n`` (``"n/held-out"``: the evaluation after step
    n), which come before step ``n + 1``. Names without leading digits come last.

    >>> sorted([2, "1/held-out", "final", 1], key=sort_batch_id)
    [1, '1/held-out', 2, 'final']
    """
    if isinstance(batch_id, int):
        return batch_id, 0
    digits = _LEADING_DIGITS.match(batch_id)
    return (int(digits[0]), 1) if digits else (math.inf, 1)


def batch_priority(batch: Batch) -> Priority:
    """Sort key of batches. Train batches are known by their sequence here, whatever they are called.

    Open ones have none: where their ids start with the same number, train goes before eval.
    """
    name = batch.sequence or batch.batch_id
    return sort_batch_id(name), batch.batch_type == "eval", batch.number


class DispatchQueue:
    def __init__(self) -> None:
        self._order: dict[str, list[tuple[Priority, Batch]]] = {}
        self._places: dict[int, Priority] = {}
        # How often something was queued; whoever looks at all of the queue can tell that nothing is new.
        self.additions = 0

    def __iter__(self) -> Iterator[Batch]:
        """Return the batches, producer by producer, the most urgent first; they may leave meanwhile."""
        return iter([batch for owner in sorted(self._order) for _, batch in self._order[owner]])

    def __bool__(self) -> bool:
        return bool(self._order)

    @property
    def producers(self) -> Collection[str]:
        return self._order.keys()

    def of(self, producer: str) -> deque[Batch]:
        return deque(batch for _, batch in self._order[producer])

    def unserved(self, served: Collection[str], model: str) -> list[UnservedPool]:
        """Return the pools that something here waits for, and that are not served. ``model`` is the trained one."""
        waiting: Counter[str] = Counter()
        for batch in self:
            for (pool, _), queued in batch.queued.items():
                if pool not in served:
                    waiting[pool] += len(queued)
        return [UnservedPool(pool=pool or model, parts=parts) for pool, parts in waiting.most_common(MAX_UNSERVED)]

    def enqueue(self, batch: Batch, task: OpenTask, part: Part) -> None:
        queued = batch.rank(task, part), task.order, part.index, task.task_id
        heapq.heappush(batch.queued.setdefault(task.kind, []), queued)
        self.join(batch)

    def join(self, batch: Batch) -> None:
        """Note that the batch is in the queue from now on, if it is RUNNING and something of it is queued."""
        if batch.state is not State.RUNNING or not batch.queued:
            return
        self.additions += 1
        if batch.number not in self._places:
            place = self._places[batch.number] = batch_priority(batch)
            insort(self._order.setdefault(batch.owner, []), (place, batch), key=lambda found: found[0])

    def take(self, batch: Batch, kind: Kind) -> None:
        heap = batch.queued[kind]
        heapq.heappop(heap)
        if not heap:
            self.clear(batch, kind)

    def drop(self, batch: Batch, task: OpenTask) -> None:
        heap = batch.queued.get(task.kind, [])
        heap[:] = [item for item in heap if item[1] != task.order]
        heapq.heapify(heap)
        if not heap:
            self.clear(batch, task.kind)

    def clear(self, batch: Batch, kind: Kind | None = None) -> None:
        if kind is None:
            batch.queued.clear()
        else:
            batch.queued.pop(kind, None)
        if not batch.queued:
            self.leave(batch)

    def leave(self, batch: Batch) -> None:
        place = self._places.pop(batch.number, None)
        if place is not None:
            order = self._order[batch.owner]
            del order[bisect_left(order, place, key=lambda found: found[0])]
            if not order:
                del self._order[batch.owner]

    def moved(self, batch: Batch) -> None:
        if batch.number in self._places:
            self.leave(batch)
            self.join(batch)
