"""When each of many things is to be looked at next, without looking at all of them. Pure."""

import heapq
from collections.abc import Hashable

_SPARE = 16  # out-of-date entries, besides one for each key, before the heap is built again


class Deadlines[K: Hashable]:
    """A time for each key. One that is put off costs nothing until the time comes that it had before."""

    def __init__(self) -> None:
        self._times: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._pushed = 0

    def set(self, key: K, time: float) -> None:
        before = self._times.get(key)
        self._times[key] = time
        if before is None or time < before:
            self._push(key, time)

    def forget(self, key: K) -> None:
        self._times.pop(key, None)
        if not self._times:
            self._heap.clear()

    def take(self, now: float) -> list[K]:
        """Return the keys that are due, and forget them."""
        due: list[K] = []
        while self._heap and self._heap[0][0] <= now:
            key = heapq.heappop(self._heap)[2]
            time = self._times.get(key)
            if time is None:
                continue
            if time <= now:
                del self._times[key]
                due.append(key)
            else:
                self._push(key, time)
        return due

    def _push(self, key: K, time: float) -> None:
        self._pushed += 1
        if len(self._heap) > 2 * len(self._times) + _SPARE:
            self._heap = [(at, number, of) for number, (of, at) in enumerate(self._times.items())]
            self._pushed = len(self._heap)
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (time, self._pushed, key))
