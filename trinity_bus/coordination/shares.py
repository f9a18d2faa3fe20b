"""Whose turn it is: what is scarce goes to the one who has least of it. Pure.

::

    producer waits --its turn--> holds one more --given back--> holds one fewer

Among those who want one more, the turn is that of whoever *holds* the fewest; among equals, that of whoever was served
longest ago, then the first by name. So with ``n`` producers that always want more, each comes to hold its ``n``-th
part, however long each keeps what it holds: a producer whose attempts take a hundred times as long as another's does
not come to hold a hundred times as many. Nobody waits for more than one service of each of the others once it holds
the fewest, and nothing is kept back: a producer that is alone gets all.

Turns are remembered, as part of the coordinator's state, only while producers compete; who neither holds nor wants
anything is forgotten.
"""

from collections.abc import Callable, Container

type Rank = tuple[int, int, str]
"""How many it holds, the number of its last turn, its name."""


class Shares:
    """Who holds how much of one thing.

    Args:
        turns: The number of the last turn of each producer; kept up to date here, stored by the owner.
        changed: Told when turns change.
    """

    def __init__(self, turns: dict[str, int], changed: Callable[[], None]) -> None:
        self.held: dict[str, int] = {}
        """Producers that hold something, and how much."""
        self._turns = turns
        self._changed = changed

    def restore(self, turns: dict[str, int]) -> None:
        """Takes over the turns of a changelog; who holds what is told by ``take``."""
        self._turns = turns

    def rank(self, producer: str) -> Rank:
        """The smallest of those who compete has the turn."""
        return self.held.get(producer, 0), self._turns.get(producer, 0), producer

    def served(self, producer: str) -> None:
        """It has had a turn while others competed."""
        self._turns[producer] = max(self._turns.values(), default=0) + 1
        self._changed()

    def take(self, producer: str) -> None:
        """It holds one more."""
        self.held[producer] = self.held.get(producer, 0) + 1

    def give_back(self, producer: str) -> None:
        """It holds one fewer."""
        held = self.held
        held[producer] -= 1
        if not held[producer]:
            del held[producer]

    def forget_idle(self, waiting: Container[str]) -> None:
        """Forgets the turns of those who neither hold nor want anything.

        Args:
            waiting: Who wants something.
        """
        if not self._turns:
            return
        idle = [name for name in self._turns if name not in self.held and name not in waiting]
        for name in idle:
            del self._turns[name]
        if idle:
            self._changed()
