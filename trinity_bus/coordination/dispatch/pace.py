"""How often explorers send heartbeats that tell nothing new: the more there are, the less often. Pure.

Each heartbeat costs the coordinator some fifty microseconds, and one more for each few attempts that it tells of. So
all of them together are bounded, and the time between two of one explorer grows with their number, by doubling. An
explorer is told (``SetPace``) when a heartbeat of it says that it has another pace; so nothing has to be remembered of
who was told, and all are told within one pause of theirs. What changes is told at once, whatever the pace.
"""

from typing import Final

from schemas.event import MAX_PACE_S

OWN_S: Final = 0.5  # explorers that are told nothing send as often by default


def pace(explorers: int, beats_per_s: int, before: float) -> float:
    """Return the least time between two heartbeats, in seconds; 0 where explorers may send as often as they like.

    ``before``, the pace until now, is kept until half as many explorers would still have it.
    """
    paused, needed = 0.0, explorers / beats_per_s
    if before and before / 4 < needed <= before:
        return before
    while max(paused, OWN_S) < needed and paused < MAX_PACE_S:
        paused = max(2 * paused, 2 * OWN_S)
    return paused
