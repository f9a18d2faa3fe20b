"""Whose turn it is: what is scarce goes to the one who has least of it. Pure.

::

    producer waits --its turn--> holds one more --released--> holds one fewer

Among those who want one more, the turn is that of whoever *holds* the fewest; among equals, that of whoever was served
longest ago, then the first by name. So with ``n`` producers that always want more, each comes to hold its ``n``-th
part, however long each keeps what it holds: a producer whose attempts take a hundred times as long as another's does
not come to hold a hundred times as many. Nobody waits for more than one service of each of the others once it holds
the fewest, and nothing is kept back: a single producer gets all.

Turns are remembered, as part of the coordinator's state, only while producers compete; who neither holds nor wants
anything is forgotten.
"""

from collections.abc import Container
from typing import Literal

from msgspec import field

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
    turns: dict[str, int] = field(default_factory=dict)
    training_turns: dict[str, int] = field(default_factory=dict)  # of those that compete for places in training
    drained: int = 0  # open train batches that were ended when all of their tasks had, by themselves


class Shares:
    """Who holds how much of one thing. ``field`` of ``counters`` has the number of the last turn of each producer."""

    def __init__(self, counters: Counters, field: Literal["turns", "training_turns"]) -> None:
        self.held: dict[str, int] = {}  # producers that hold something, and how much
        self._counters = counters
        self._field = field

    @property
    def _turns(self) -> dict[str, int]:
        turns: dict[str, int] = getattr(self._counters, self._field)
        return turns

    def rank(self, producer: str) -> Rank:
        # The smallest of those who compete has the turn.
        return self.held.get(producer, 0), self._turns.get(producer, 0), producer

    def served(self, producer: str) -> None:
        """Note that it has had a turn while others competed."""
        turns = self._turns
        self._keep({**turns, producer: max(turns.values(), default=0) + 1})

    def take(self, producer: str) -> None:
        self.held[producer] = self.held.get(producer, 0) + 1

    def release(self, producer: str) -> None:
        held = self.held
        held[producer] -= 1
        if not held[producer]:
            del held[producer]

    def forget_idle(self, waiting: Container[str]) -> None:
        """Forget the turns of those who neither hold nor want anything."""
        turns = self._turns
        kept = {name: turn for name, turn in turns.items() if name in self.held or name in waiting}
        if len(kept) < len(turns):
            self._keep(kept)

    def _keep(self, turns: dict[str, int]) -> None:
        # Another dictionary: counters take note of assignments.
        setattr(self._counters, self._field, turns)
