"""Which orders of a lane an explorer carries out. Pure: no clock, no client, no task.

A partition of ``rollouts`` carries the lanes of several explorers, and each lane the orders to all incarnations of its
explorer. It carries out those to this very incarnation, each once.
"""

from collections import OrderedDict
from typing import Any

from schemas import Cancel, Dispatch, SetPace, Superseded
from trinity_bus.runners.service import AttemptKey, key_of

REMEMBERED = 65_536  # attempts that are remembered, to know an order that comes twice

type Order = Dispatch | Cancel | SetPace | Superseded


class OrderFilter:
    def __init__(self, explorer: str, incarnation: str) -> None:
        self._to = explorer, incarnation
        self._seen: OrderedDict[AttemptKey, None] = OrderedDict()

    def handle(self, record: Any) -> Order | None:
        """Return the order, if it is to be carried out; None for other records, orders to others, and a repetition."""
        if isinstance(record, Superseded):
            return record if (record.service, record.name, record.incarnation) == ("explorer", *self._to) else None
        if not isinstance(record, Dispatch | Cancel | SetPace) or (record.explorer, record.incarnation) != self._to:
            return None
        if isinstance(record, Dispatch):
            attempt = key_of(record)
            if attempt in self._seen:
                return None
            self._seen[attempt] = None
            if len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)
        return record
