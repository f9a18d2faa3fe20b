"""What keeps records from a reader though the brokers have them: told, since nothing else would say so. Pure.

===================================  =================================================================================
somebody's transaction stays open    readers of committed records wait behind it, in that partition, until the brokers
                                     end it (``transaction.max.timeout.ms``, 15 minutes unless it is set)
a topic has more partitions          senders spread over all of them, and nobody reads those that a topic should not
                                     have, unless it is one that can grow (``growth``): Kafka takes none away
===================================  =================================================================================
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

HELD_S: Final = 5.0  # transactions of the mesh's own services end long before


@dataclass(frozen=True, slots=True)
class Standing:
    # Where a reader is in one partition, as the last fetch has told.
    topic: str
    partition: int
    position: int
    stable_end: int | None  # of what no open transaction holds back; None where no broker has told yet
    end: int | None


class Stalls:
    """What is known of one reader. Told the time, in seconds of any steady clock."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], tuple[int, float]] = {}  # by partition: where it is held, and since when
        # whether there is a transaction of which the last look could not tell yet whether it stays open
        self.doubtful = False
        self._said: set[str] = set()
        self._news: list[str] = []

    def look(self, now: float, standings: Iterable[Standing], partitions: Iterable[tuple[str, int, int]]) -> list[str]:
        """Return what is kept from the reader, a line each."""
        # ``partitions``: of each topic its name, how many it has, and how many it should have.
        lines = [
            f"{one.topic}/{one.partition}: records from {one.stable_end} on wait for a transaction that somebody has "
            "left open; the brokers end it after its time-out, transaction.max.timeout.ms at most"
            for one in standings
            if self._is_held(now, one)
        ]
        self.doubtful = len(lines) < len(self._held)
        lines += [
            f"{topic} has {has} partitions and needs exactly {wanted}: nobody reads what is in the others; make the "
            "topic anew, and send again what they hold"
            for topic, has, wanted in partitions
            if has > wanted
        ]
        self._news += [line for line in lines if line not in self._said]
        self._said.update(lines)
        return lines

    def news(self) -> list[str]:
        """Return what has not been told yet, a line each."""
        lines, self._news = self._news, []
        return lines

    def _is_held(self, now: float, one: Standing) -> bool:
        place, stable, end = (one.topic, one.partition), one.stable_end, one.end
        if stable is None or end is None or stable >= end or one.position < stable:
            self._held.pop(place, None)
            return False
        at, since = self._held.get(place, (stable, now))
        if at != stable:
            since = now
        self._held[place] = (stable, since)
        return now - since >= HELD_S
