r"""Who takes a version from whom, so that it leaves each machine once: a pure state machine, kept by the trainer.

One for each version, through all announcements of it. Each *member* that comes is told its *holder*: another member, or
nobody, which is the trainer. A member passes on what it takes while it takes the rest, so a chain is as fast as one
transfer, plus a chunk for each link of it; a holder that sent to two at once over the same card would take twice as
long::

    trainer --> a1 --> b1 --> c1          machines a, b, c: each sends the version to one other machine
                 \
                  --> a2 --> a3           and each member to one other on its own machine, which costs no card anything

A member that has all of it is *whole*: it takes from nobody, and stays a holder for as long as it is there. So who
comes late takes the version from one that has had it for long, and the trainer's card has nothing to do with it.

==============================================  ====================================================================
what happens                                    what follows
==============================================  ====================================================================
a member comes                                  its holder is one on its own machine that sends to nobody there; else
                                                one on a machine that sends to no other: a whole one, or the nearest
                                                to one that has all; the trainer last
a member comes with a part, from a former try   likewise, but no holder that has much less than it
a member says that its holder has failed it     that one is no holder any more; the member has a new one, which does
                                                not depend on it; unless it is itself on a slow machine
a member cannot reach others                    it is sent the rest by the trainer; its holder is left to others
a machine says so for the ninth time            likewise: it is more likely that something is wrong with that machine
a member is slow to take what its holder has    both machines are put behind the end of the chain; see below
a member has all                                it takes from nobody any more; those who take from it go on
a member leaves: it takes another version, or   those who take from it say that it has failed them, unless it has sent
has died                                        them all
nobody is left who can be a holder              the trainer sends itself, however many it sends to already
==============================================  ====================================================================

**Slow machines.** Members say how far they are (``report``). Not rates are judged, but links between machines: one is
slow over which a member takes less than ``SLOW_SHARE`` of what its holder has come to have in the same time, while that
was ahead of it, in bytes, since chunks of a large version differ in size. So nobody is blamed who merely waits behind a
slow one. Which end of a slow link is to blame, nobody can tell yet: both machines go behind the end of the chain, each
beside the other, and nobody takes from them any more::

    trainer --> a --> B --slow--> C --> d --> e      becomes      trainer --> a --> d --> e --> B
                                                                                           \--> C

If C is slow there, too, it is to blame, and else B. The other one is the end of the chain from then on, and the culprit
behind it, in this round and in the next ones (``culprits``). No more than a quarter of the machines are put behind, so
nothing flaps. What the trainer's own links could carry is only known from the round before (``usual``).

The time limit of a round is the coordinator's, and whoever gets nothing by then is named in the next epoch.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from trinity_bus.weights.layout import Span

TRAINER: Final = 0  # its number; members have 1, 2 and so on
# Of members of one machine, that their holders have failed them. One that lies would leave nobody to be a holder.
MOST_CLAIMS: Final = 8
SLOW_SHARE: Final = 0.25  # of what a holder could have given
WINDOW_S: Final = 1.5  # over which a link is judged, at least: three reports
_FEW_CHUNKS: Final = 4  # of the largest, that a holder could have given: with fewer, nothing is said of a link
_SLOW_MACHINES: Final = 4  # Of so many machines one may be put behind; of fewer than eight, the two ends of one link
_LEAD: Final = 16  # Of so many parts of a version, one that went on from a former try may have one more than its holder
_GONE: Final = 1024  # members that have left and are remembered, besides those from whom somebody takes


@dataclass(slots=True)
class ChainPlace:
    host: str
    port: int
    holder: int = TRAINER
    failed: bool = False  # somebody says that it has failed them
    alone: bool = False  # it cannot reach others
    whole: bool = False  # it has all, and takes from nobody
    near: bool = False  # its holder is, or was, on its own machine
    resumed: bool = False  # it came with a part of the version
    heard: bool = False  # it has reported since it has this holder: a link to that may take its time
    proven: int = 0  # bytes that it has
    began: tuple[float, int] | None = None  # time and bytes of its first report
    at: float = 0.0  # time of its last one
    # Since when its holder has been ahead of it, what it had then, and what the holder had
    window: tuple[float, int, int] | None = None

    @property
    def rate(self) -> float:
        began, had = self.began or (self.at, 0)
        return (self.proven - had) / (self.at - began) if self.at > began else 0.0


@dataclass(slots=True)
class SlowLink:
    number: int  # of the member that took
    holder: str
    taker: str
    culprit: str | None = None  # the machine that is to blame, once that is known


class FanOut:
    """Members that take or have one version, by numbers in the order in which they came. Times are of any steady clock.

    Args:
        slow: Machines that come behind the others from the beginning.
        usual: Bytes a second that members had of the version before; 0 where that is not known.
    """

    def __init__(self, host: str, chunks: Sequence[Span] = (), *, slow: Iterable[str] = (), usual: float = 0.0) -> None:
        self._host = host
        # how many bytes so many chunks have
        self._ends = list(accumulate((end - start for _, start, end in chunks), initial=0))
        self._few = _FEW_CHUNKS * max((end - start for _, start, end in chunks), default=0)
        self._slow = set(slow)
        self._usual = usual
        self._places: dict[int, ChainPlace] = {}
        self._gone: dict[int, ChainPlace] = {}
        self._taking = 0  # how many are not whole
        self._links: list[SlowLink] = []
        self._last = TRAINER
        self._claims: Counter[str] = Counter()
        self._takers: dict[int, set[int]] = {}  # who takes from whom

    def __len__(self) -> int:
        return len(self._places)

    def join(self, host: str, port: int, has: int = 0) -> int:
        """Note that a member has come, with ``has`` chunks from a former try. Return its number."""
        self._last += 1
        nbytes = self._bytes(has)
        place = self._places[self._last] = ChainPlace(host, port, proven=nbytes, resumed=nbytes > 0)
        if 0 < nbytes == self._ends[-1]:
            place.whole = True
            return self._last
        self._taking += 1
        self._hang(self._last, self._choose(self._last))
        self._settle()
        return self._last

    def move(self, number: int, *, alone: bool) -> None:
        """Note that a member's holder has failed it, or that it reaches nobody (``alone``): it has another one now."""
        place = self._places[number]
        self._claims[place.host] += not alone
        place.alone = alone or self._claims[place.host] > MOST_CLAIMS
        former = self._places.get(place.holder)
        # Of what a slow machine waits for too long, its own card may be the reason.
        if former is not None and not place.alone and place.host not in self._slow:
            former.failed = True
        self._hang(number, TRAINER if place.alone else self._choose(number))
        self._settle()

    def report(self, number: int, proven: int, now: float) -> None:
        """Note how many chunks a member has, and look whose link is slow.

        The report of a slow one may itself be late, so the next report of its holder tells as well, and of anybody
        where that is the trainer.
        """
        place = self._places[number]
        nbytes = self._bytes(proven)
        place.began = place.began or (now, nbytes)
        place.proven, place.at, place.heard = nbytes, now, True
        if nbytes >= self._ends[-1] and not place.whole:
            place.whole = True
            self._taking -= 1
            self._takers[place.holder].discard(number)
        for taker in {number} | self._takers.get(number, set()) | self._takers.get(TRAINER, set()):
            is_slow = self._is_slow(taker, now)
            if is_slow is not None:
                self._conclude(taker, is_slow=is_slow)

    def leave(self, number: int) -> None:
        self._gone[number] = self._places.pop(number)
        self._taking -= not self._gone[number].whole
        self._takers.get(self._gone[number].holder, set()).discard(number)
        if len(self._gone) > _GONE:
            # One version may be served for long, while members come and go.
            forgotten = next((one for one in self._gone if not self._takers.get(one)), None)
            if forgotten is not None:
                del self._gone[forgotten]
                self._takers.pop(forgotten, None)

    def holder(self, number: int) -> int:
        return self._places[number].holder

    def is_whole(self, number: int) -> bool:
        return self._places[number].whole

    def address(self, number: int) -> tuple[str, int] | None:
        place = self._places.get(number)
        return None if place is None else (place.host, place.port)

    @property
    def is_settled(self) -> bool:
        return not self._taking

    def culprits(self) -> set[str]:
        """Return the machines that were slow, as far as this round has shown."""
        return {link.culprit for link in self._links if link.culprit is not None}

    def rate(self) -> float:
        """Return the median of bytes a second that members had from other machines; 0 where nobody has reported."""
        rates = [place.rate for place in (self._gone | self._places).values() if place.rate > 0 and not place.near]
        return statistics.median(rates) if rates else 0.0

    def _bytes(self, chunks: int) -> int:
        # Whatever a member says of itself, it has no more than there is.
        return self._ends[min(chunks, len(self._ends) - 1)]

    def _is_slow(self, number: int, now: float) -> bool | None:
        # Whether a member takes less than it could; None where nobody can tell.
        place = self._places[number]
        if place.whole:
            return False
        holder = self._places.get(place.holder)
        had = self._ends[-1] if holder is None else holder.proven
        is_judged = place.heard and not place.alone and place.host != self._host_of(place.holder)
        if not is_judged or had <= place.proven:
            place.window = None
            return None
        if place.window is None:
            place.window = (now, place.proven, had)
            return None
        since, proven, held = place.window
        passed = now - since
        if holder is not None and not holder.whole:
            could = float(had - held)
        else:
            # The trainer, or one that has all, or has left.
            former = holder or self._gone.get(place.holder)
            could = passed * (self._usual if former is None else self._card(former))
        if passed < WINDOW_S or could < self._few:
            return None
        place.window = (now, place.proven, had)
        return place.proven - proven < SLOW_SHARE * could

    def _card(self, place: ChainPlace) -> float:
        # Bytes a second that a member's card could send, as far as is known: what it has taken.
        return self._usual if place.near or not place.rate else place.rate

    def _conclude(self, number: int, *, is_slow: bool) -> None:
        # Puts both ends of a slow link behind the others, and one back when it is known to be not to blame.
        taker = self._places[number].host
        doubted = next((link for link in self._links if link.number == number and link.culprit is None), None)
        if doubted is not None:
            doubted.culprit = doubted.taker if is_slow else doubted.holder
            self._slow = (self._slow - {doubted.holder, doubted.taker}) | self.culprits()
        elif is_slow and taker not in self._slow:
            holder = self._host_of(self._places[number].holder)
            behind = self._slow | ({taker, holder} - {self._host})
            machines = {self._host_of(one) for one in self._places | self._gone}
            if len(behind & machines) > max(2, len(machines) // _SLOW_MACHINES):
                return
            self._slow = behind
            self._links.append(SlowLink(number, holder, taker, taker if holder == self._host else None))
        self._settle()

    def _settle(self) -> None:
        # Nobody takes from a slow machine, and slow ones take from the end of the chain.
        if not self._slow:
            return
        for is_slow in (False, True):
            for number, place in self._places.items():
                if place.whole or place.alone or place.near or (place.host in self._slow) != is_slow:
                    continue
                host = self._host_of(place.holder)
                if host in self._slow or (is_slow and host in self._senders(number)):
                    self._hang(number, self._choose(number))

    def _hang(self, number: int, holder: int) -> None:
        place = self._places[number]
        if holder != place.holder:
            place.window, place.heard = None, False
        self._takers.get(place.holder, set()).discard(number)
        self._takers.setdefault(holder, set()).add(number)
        place.holder, place.near = holder, self._host_of(holder) == place.host

    def _host_of(self, number: int) -> str:
        return self._host if number == TRAINER else (self._places.get(number) or self._gone[number]).host

    def _senders(self, without: int) -> set[str]:
        # The machines that send to another one that is not slow.
        return {
            self._host_of(at.holder)
            for other, at in self._places.items()
            # One that has failed others is most likely dead, and takes nothing any more.
            if other != without
            and not at.whole
            and at.holder not in self._gone
            and not at.failed
            and at.host not in self._slow | {self._host_of(at.holder)}
        }

    def _choose(self, number: int) -> int:
        # The holder of a member, which itself has none that counts.
        place = self._places[number]
        own, senders = place.host, self._senders(number)
        # It would wait for one that has less, until it thinks that something is wrong with that one.
        least = place.proven - self._ends[-1] // _LEAD if place.resumed else 0
        hosts = {TRAINER: self._host} | {other: at.host for other, at in self._places.items()}
        able = [
            other
            for other in hosts
            if other == TRAINER or (not self._places[other].failed and self._places[other].proven >= least)
        ]
        taken = {
            at.holder
            for other, at in self._places.items()
            if other != number and not at.whole and not at.failed and at.host == own
        }
        near = [other for other in able if hosts[other] == own and other not in taken]
        barred = senders | self._slow | {own}
        far = [other for other in able if hosts[other] not in barred]
        for free in (near, far):
            steps = {other: steps for other in free if (steps := self._steps(other, number)) is not None}
            if steps:
                return min(steps, key=lambda other: (other == TRAINER, steps[other], other))
        return TRAINER

    def _steps(self, start: int, without: int) -> int | None:
        # How far a holder is from one that has all; None where it takes from the member itself.
        steps, at = 0, start
        while at in self._places and not self._places[at].whole:
            if at == without:
                return None
            steps, at = steps + 1, self._places[at].holder
        return steps
