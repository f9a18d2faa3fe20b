r"""Who takes a version from whom, so that it leaves each machine once: a pure state machine, kept by the trainer.

One for each announcement: its members share a secret, by which they let each other in. Each *member* that comes is told
its *holder*: another member, or nobody, which is the trainer. A member passes on what it takes while it takes the rest,
so a chain is as fast as one transfer, plus a chunk for each link of it; a holder that sent to two at once over the same
card would take twice as long::

    trainer --> a1 --> b1 --> c1          machines a, b, c: each sends the version to one other machine
                 \
                  --> a2 --> a3           and each member to one other on its own machine, which costs no card anything

==============================================  ====================================================================
what happens                                    what follows
==============================================  ====================================================================
a member comes                                  its holder is one on its own machine that sends to nobody there; else
                                                one on a machine that sends to no other; the nearest to the trainer
a member says that its holder has failed it     that one is no holder any more; the member has a new one, which does
                                                not depend on it
a member cannot reach others                    it is sent the rest by the trainer; its holder is left to others
a machine says so for the ninth time            likewise: it is more likely that something is wrong with that machine
a member leaves: it has all, or has died        those who take from it go on, or say that it has failed them
nobody is left who can be a holder              the trainer sends itself, however many it sends to already
==============================================  ====================================================================

The time limit of a round is the coordinator's, and whoever gets nothing by then is named in the next epoch.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

TRAINER: Final = 0
"""Its number; members have 1, 2, ..."""
MOST_CLAIMS: Final = 8
"""Of members of one machine, that their holders have failed them. One that lies would leave nobody to be a holder."""


@dataclass(slots=True)
class ChainPlace:
    """Where a member stands."""

    host: str
    port: int
    holder: int = TRAINER
    """Whom it takes from."""
    failed: bool = False
    """Somebody says that it has failed them."""


class FanOut:
    """Members of one announcement, by numbers in the order in which they came.

    Args:
        host: The trainer's.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._places: dict[int, ChainPlace] = {}
        self._last = TRAINER
        self._claims: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._places)

    def join(self, host: str, port: int) -> int:
        """Note that a member has come. Return its number.

        Args:
            host: Its address.
            port: Where it passes on what it takes.
        """
        self._last += 1
        self._places[self._last] = place = ChainPlace(host, port)
        place.holder = self._choose(self._last)
        return self._last

    def move(self, number: int, *, alone: bool) -> None:
        """Note that a member's holder has failed it; it has another one from now on.

        Args:
            number: The member.
            alone: Whether it cannot reach others, so that the trainer sends the rest.
        """
        place = self._places[number]
        self._claims[place.host] += not alone
        alone = alone or self._claims[place.host] > MOST_CLAIMS
        former = self._places.get(place.holder)
        if former is not None and not alone:
            former.failed = True
        place.holder = TRAINER if alone else self._choose(number)

    def leave(self, number: int) -> None:
        """Note that a member is gone, in whichever way."""
        del self._places[number]

    def holder(self, number: int) -> tuple[str, int] | None:
        """Return host and port of whom a member takes from; None for the trainer."""
        place = self._places.get(self._places[number].holder)
        return None if place is None else (place.host, place.port)

    def _choose(self, number: int) -> int:
        """Return the holder of a member, which itself has none that counts."""
        own = self._places[number].host
        hosts = {TRAINER: self._host} | {other: at.host for other, at in self._places.items()}
        neighbours, machines = set(), set()
        for other, at in self._places.items():
            # One that has failed others is most likely dead, and takes nothing any more.
            if other != number and at.holder in hosts and not at.failed:
                if at.host == hosts[at.holder]:
                    neighbours.add(at.holder)
                else:
                    machines.add(hosts[at.holder])
        able = [other for other, host in hosts.items() if other == TRAINER or not self._places[other].failed]
        near = [other for other in able if hosts[other] == own and other not in neighbours]
        far = [other for other in able if hosts[other] != own and hosts[other] not in machines]
        for free in (near, far):
            steps = {other: steps for other in free if (steps := self._steps(other, number)) is not None}
            if steps:
                return min(steps, key=lambda other: (steps[other], other))
        return TRAINER

    def _steps(self, start: int, without: int) -> int | None:
        """Return how far a holder is from the trainer; None where it takes from the member itself."""
        steps, at = 0, start
        while at in self._places:
            if at == without:
                return None
            steps, at = steps + 1, self._places[at].holder
        return steps
