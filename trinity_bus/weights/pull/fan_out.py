r"""Who takes a version from whom, so that it leaves each machine once: a pure state machine, kept by the trainer.

One for each version, through all announcements of it. Each *member* is told its *source*: another one, or the trainer.
It passes on what it receives while it receives the rest, so a chain is as fast as one transfer, plus a chunk for each
link of it; a source that sent to two at once over the same card would take twice as long::

    trainer --> a1 --> b1 --> c1          machines a, b, c: each sends the version to one other machine
                 \
                  --> a2 --> a3           and each member to one other on its own machine, which costs no card anything

==============================================  ====================================================================
what happens                                    what follows
==============================================  ====================================================================
a member comes                                  its source is one on its own machine that sends to nobody there; else
                                                one on a machine that sends to no other, the nearest to the chain's
                                                beginning; the trainer last
a member comes with a part, from a former try   likewise, but no source that came with much less than it
a member says that its source has failed it     that one is no source any more; the member has a new one, which does
                                                not depend on it
that one has itself lost its source meanwhile   the member keeps it: it had nothing to send
a member comes that passes nothing on           it is sent all by the trainer
a member cannot reach others                    it is sent the rest by the trainer; its source is left to others
a machine says so for the ninth time            likewise: it is more likely that something is wrong with that machine
a member leaves: it has all, or has died        those who take from it are sent the rest by it, or say that it has
                                                failed them
nobody is left who can be a source              the trainer sends itself, however many it sends to already
==============================================  ====================================================================

A machine that is slow delays those behind it. The time limit of a round is the coordinator's, and whoever gets nothing
by then is named in the next epoch, and goes on from what it has.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

TRAINER: Final = 0  # its number; members have 1, 2 and so on
# Of members of one machine, that their sources have failed them. One that lies would leave nobody to be a source.
MOST_CLAIMS: Final = 8
_LEAD: Final = 16  # Of so many parts of a version, one that goes on from a former try may have one more than its source


@dataclass(slots=True)
class ChainPlace:
    host: str
    port: int  # where it passes on what it receives; 0: it does not
    has: int  # chunks with which it came, from a former try
    source: int = TRAINER
    moves: int = 0  # how often it has lost its source
    source_moves: int = 0  # those of its source, when it last heard of that
    failed: bool = False  # somebody says that it has failed them


class FanOut:
    """Members that take one version of so many chunks, by numbers in the order in which they came."""

    def __init__(self, host: str, chunks: int = 0) -> None:
        self._host = host
        self._lead = chunks // _LEAD
        self._places: dict[int, ChainPlace] = {}
        self._last = TRAINER
        self._claims: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._places)

    def join(self, host: str, port: int, has: int = 0) -> int:
        """Note that a member has come, with ``has`` chunks from a former try. Return its number."""
        self._last += 1
        place = self._places[self._last] = ChainPlace(host, port, has)
        self._hang(place, self._choose(self._last) if port else TRAINER)
        return self._last

    def move(self, number: int, *, alone: bool) -> None:
        """Note that a member's source has failed it, or that it reaches nobody (``alone``): it has another one now."""
        place = self._places[number]
        place.moves += 1
        former = self._places.get(place.source)
        if former is not None and not alone and former.moves != place.source_moves:
            self._hang(place, place.source)
            return
        self._claims[place.host] += not alone
        alone = alone or self._claims[place.host] > MOST_CLAIMS
        if former is not None and not alone:
            former.failed = True
        self._hang(place, TRAINER if alone else self._choose(number))

    def leave(self, number: int) -> None:
        del self._places[number]

    def source(self, number: int) -> tuple[str, int] | None:
        """Return host and port of a member's source; None where that is the trainer, or has left."""
        source = self._places.get(self._places[number].source)
        return None if source is None else (source.host, source.port)

    def _hang(self, place: ChainPlace, source: int) -> None:
        place.source = source
        place.source_moves = self._places[source].moves if source in self._places else 0

    def _choose(self, number: int) -> int:
        # The source of a member, which itself has none that counts.
        own = self._places[number].host
        # It would wait for one that has less, until it thinks that something is wrong with that one.
        least = self._places[number].has - self._lead
        # One that has failed others is most likely dead, and takes nothing any more.
        there = {n: place for n, place in self._places.items() if not place.failed}
        able = {n: place.host for n, place in there.items() if place.port and place.has >= least}
        others = [place for n, place in there.items() if n != number]
        near_taken = {place.source for place in others if place.host == own}
        senders = {host for place in others if (host := self._host_of(place.source)) != place.host}
        hosts = {TRAINER: self._host} | able
        near = [n for n, host in hosts.items() if host == own and n not in near_taken]
        far = [n for n, host in hosts.items() if host != own and host not in senders]
        for free in (near, far):
            steps = {n: steps for n in free if (steps := self._steps(n, number)) is not None}
            if steps:
                return min(steps, key=lambda n: (n == TRAINER, steps[n], n))
        return TRAINER

    def _host_of(self, number: int) -> str | None:
        # None: it has left, and what it still sends, it sends of the whole version.
        place = self._places.get(number)
        return self._host if number == TRAINER else None if place is None else place.host

    def _steps(self, start: int, without: int) -> int | None:
        # How far a source is from the beginning of its chain; None where it takes from the member itself.
        steps, at = 0, start
        while at in self._places:
            if at == without:
                return None
            steps, at = steps + 1, self._places[at].source
        return steps
