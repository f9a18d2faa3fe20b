"""Whether a process that has ended is started again, and when. Pure: times are arguments.

::

    RUNS --ended for a reason that can pass--> WAITS, 1 s, 2 s, 4 s, ... a minute --> RUNS
      |                                          '--it is the last of too many in a row--> GIVEN UP
      |--ended for a reason that stays: its settings---------------------------------------> GIVEN UP
      '--ended with 0, where its work ends-------------------------------------------------> DONE

A signal, a freeze, too little memory, a broker that was away: all of these pass, and so may whatever a process cannot
explain. What has run for a while before it ended is no part of a row. What ends at once, again and again, has a reason
that a start does not mend.
"""

import signal
from dataclasses import dataclass
from enum import Enum
from typing import Final

from trinity_bus.runtime.process import how_ended

# how a service ends that cannot work with what it was told (``EX_CONFIG`` of ``sysexits.h``)
SETTINGS_STATUS: Final = 78
LIVED_S: Final = 60.0  # who has run for so long was well
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0
_MOST: Final = 6


class Fate(Enum):
    AGAIN = "again"
    GIVEN_UP = "given up"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class RestartVerdict:
    fate: Fate
    why: str  # how it has ended, to be said behind its name
    pause_s: float = 0.0  # before it is started again


class Restarts:
    """The ends of one process, started again ``most`` times in a row; ``work_ends``: with status 0 it is done."""

    def __init__(self, most: int = _MOST, *, work_ends: bool = False) -> None:
        self._most = most
        self._work_ends = work_ends
        self._row = 0

    def ended(self, status: int, ran_s: float) -> RestartVerdict:
        """Decide, by its exit status (minus a signal's number) and the seconds it ran, by ``awake``."""
        lack = ", as the kernel does where memory is short" if status == -signal.SIGKILL else ""
        how = how_ended(status) + lack
        if status == 0 and self._work_ends:
            return RestartVerdict(Fate.DONE, how)
        if status == SETTINGS_STATUS:
            return RestartVerdict(Fate.GIVEN_UP, f"{how}: a setting is wrong, and is so at the next start")
        self._row = 0 if ran_s >= LIVED_S else self._row
        if self._row >= self._most:
            return RestartVerdict(
                Fate.GIVEN_UP, how if self._most == 0 else f"{how}, once more after {self._row} starts"
            )
        self._row += 1
        return RestartVerdict(Fate.AGAIN, how, min(_FIRST_S * 2 ** (self._row - 1), _LONGEST_S))
