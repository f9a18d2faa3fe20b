"""Which orders of a lane an explorer carries out. Pure: no clock, no client, no task.

A partition of ``rollouts`` carries the lanes of several explorers, and each lane the orders to all incarnations of its
explorer. It carries out those to this very incarnation, each once.
"""

from collections import OrderedDict
from typing import Any

from schemas import Cancel, Dispatch, SetPace, Superseded
from trinity_bus.runners.service import AttemptKey, key_of

REMEMBERED = 65_536  # attempts that are remembered, to know an order that comes twice


class OrderFilter:
    def __init__(self, explorer: str, incarnation: str) -> None:
        self._explorer = explorer
        self._incarnation = incarnation
        self._seen: OrderedDict[AttemptKey, None] = OrderedDict()
        self._open: set[AttemptKey] = set()

    def handle(self, record: Any) -> Dispatch | Cancel | None:
        """Return the order, if it is to be carried out; None if it is passed over.

        Passed over are records of other kinds, orders to others, a dispatch that came before, and the cancellation of
        what does not run.
        """
        if not isinstance(record, Dispatch | Cancel):
            return None
        if (record.explorer, record.incarnation) != (self._explorer, self._incarnation):
            return None
        attempt = key_of(record)
        if isinstance(record, Cancel):
            if attempt not in self._open:
                return None
            self._open.discard(attempt)
            return record
        if attempt in self._seen:
            return None
        self._seen[attempt] = None
        self._open.add(attempt)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return record

    def paced(self, record: Any) -> float | None:
        """Return the pace of heartbeats that this incarnation is to keep; None where the record tells of none."""
        if isinstance(record, SetPace) and (record.explorer, record.incarnation) == (self._explorer, self._incarnation):
            return record.pace_s
        return None

    def dismissed(self, record: Any) -> bool:
        """Whether the coordinator says that another incarnation of this explorer has begun."""
        return (
            isinstance(record, Superseded)
            and record.service == "explorer"
            and (record.name, record.incarnation) == (self._explorer, self._incarnation)
        )

    def ended(self, attempt: AttemptKey) -> None:
        self._open.discard(attempt)
