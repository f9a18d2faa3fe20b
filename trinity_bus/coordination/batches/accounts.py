"""Who has how much, and whose turn it is: what is scarce goes to the one who has least of it. Pure.

Among those who want one more, the turn is that of whoever *holds* the fewest; among equals, that of whoever was served
longest ago, then the first by name. So with ``n`` producers that always want more, each comes to hold its ``n``-th
part, however long each keeps what it holds, and nobody waits for more than one service of each of the others once it
holds the fewest. A single producer gets all. Turns are part of the coordinator's state while producers compete.

Named batches that are not full hold up nobody, but they take room, in tasks, in bytes and in batches. When one of these
is too much, the producer that takes most of it gives up the batch of its own that got no task for the longest time. So
a client that dies while it fills batches costs the others nothing, and one that fills without end costs itself.
"""

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from trinity_bus.coordination.batches.batch import Batch
from trinity_bus.coordination.limits import MAX_KEPT_RESULTS
from trinity_bus.coordination.state.tables import Row

type Rank = tuple[int, int, str]  # how many it holds, the number of its last turn, its name


class Counters(Row):
    """Numbers that only grow, but for one: the ``books`` entry of the changelog."""

    tasks: int = 0
    batches: int = 0
    unnamed: int = 0
    filled: int = 0
    sequence: int = 0  # of the train batch that was admitted last; smaller by one when an admitted one is aborted
    finalized: int = 0  # sequence of the train batch that was finalized last
    timed_attempts: int = 0  # attempts at train tasks whose time was taken
    attempt_seconds: float = 0.0  # that they took together
    # Of producers that compete for slots.
    turns: dict[str, int] = msgspec.field(default_factory=dict)
    training_turns: dict[str, int] = msgspec.field(default_factory=dict)  # of those that compete for places in training
    drained: int = 0  # open train batches that were ended when all of their tasks had, by themselves


class Shares:
    """Who holds how much of one thing. ``field`` of ``counters`` has the number of the last turn of each producer."""

    def __init__(self, counters: Counters, field: Literal["turns", "training_turns"]) -> None:
        self.held: Counter[str] = Counter()  # producers that hold something, and how much
        self._counters = counters
        self._field = field

    @property
    def _turns(self) -> dict[str, int]:
        turns: dict[str, int] = getattr(self._counters, self._field)
        return turns

    def rank(self, producer: str) -> Rank:
        # The smallest of those who compete has the turn.
        return self.held[producer], self._turns.get(producer, 0), producer

    def served(self, producer: str) -> None:
        """Note that it has had a turn while others competed."""
        turns = self._turns
        self._keep({**turns, producer: max(turns.values(), default=0) + 1})

    def take(self, producer: str) -> None:
        self.held[producer] += 1

    def release(self, producer: str) -> None:
        self.held[producer] -= 1
        if not self.held[producer]:
            del self.held[producer]

    def forget_idle(self, waiting: Container[str]) -> None:
        turns = self._turns
        kept = {name: turn for name, turn in turns.items() if name in self.held or name in waiting}
        if len(kept) < len(turns):
            self._keep(kept)

    def _keep(self, turns: dict[str, int]) -> None:
        # Another dictionary: counters take note of assignments.
        setattr(self._counters, self._field, turns)


@dataclass(slots=True)
class Amount:
    count: int = 0
    size: int = 0  # bytes

    def add(self, count: int, size: int) -> None:
        self.count += count
        self.size += size


@dataclass(slots=True)
class Usage:
    """What is open, of all together and of each producer."""

    tasks: Amount = field(default_factory=Amount)  # open ones, of batches that need no more of them to go on
    results: Amount = field(default_factory=Amount)  # of batches that are full
    _of: dict[str, Amount] = field(default_factory=dict)  # open tasks of each producer that has any

    def of(self, producer: str) -> Amount:
        return self._of.get(producer) or Amount()

    def add(self, producer: str, count: int, size: int) -> None:
        """Add to what a producer has open; what may be negative."""
        amount = self._of.setdefault(producer, Amount())
        amount.add(count, size)
        if not amount.count:
            del self._of[producer]

    def has_room(self, max_tasks: int, max_bytes: int) -> bool:
        tasks, results = self.tasks, self.results
        return (
            tasks.count < max_tasks
            and tasks.size < max_bytes
            and results.count < MAX_KEPT_RESULTS
            and results.size < max_bytes
        )


@dataclass(slots=True)
class _Counted:
    batch: Batch
    amount: Amount = field(default_factory=Amount)  # tasks that it has accepted, and bytes of the open ones


class Unfilled:
    def __init__(self, max_tasks: int, max_bytes: int, max_batches: int) -> None:
        self._max_tasks = max_tasks
        self._max_bytes = max_bytes
        self._max_batches = max_batches
        self._counted: dict[str, _Counted] = {}  # the one that got no task for the longest time first
        self._total = Amount()

    def __contains__(self, batch: Batch) -> bool:
        return batch.batch_id in self._counted

    def grew(self, batch: Batch) -> None:
        """Note that the batch has come, or has got a task."""
        self.remove(batch)
        self._counted[batch.batch_id] = _Counted(batch)
        self.shrank(batch)

    def shrank(self, batch: Batch) -> None:
        """Note that a task of one of them has ended: its bytes are free."""
        counted = self._counted[batch.batch_id]
        self._total.add(batch.accepted - counted.amount.count, batch.size - counted.amount.size)
        counted.amount = Amount(batch.accepted, batch.size)

    def remove(self, batch: Batch) -> None:
        counted = self._counted.pop(batch.batch_id, None)
        if counted is not None:
            self._total.add(-counted.amount.count, -counted.amount.size)

    def excess(self) -> Batch | None:
        if self._total.size > self._max_bytes:
            uses = [(one.batch.owner, one.amount.size) for one in self._counted.values()]
        elif self._total.count > self._max_tasks:
            uses = [(one.batch.owner, one.amount.count) for one in self._counted.values()]
        elif len(self._counted) > self._max_batches:
            uses = [(one.batch.owner, 1) for one in self._counted.values()]
        else:
            return None
        use: Counter[str] = Counter()  # of each owner
        for owner, amount in uses:
            use[owner] += amount
        heaviest = max(use, key=lambda owner: (use[owner], owner))
        return next(one.batch for one in self._counted.values() if one.batch.owner == heaviest)
