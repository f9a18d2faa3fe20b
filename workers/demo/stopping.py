"""When to produce, when to check, and when training ends. Pure.

::

    produce --- reward up ---> wait --- all that is produced is trained ---> check --- all right ---> end
       ^                          |                                              |
       '-------- otherwise -------'----------------------------------------------'

All steps used up ends it too.

The mean reward of what is drawn does not tell: a model that never says one digit at one place keeps 0.975 of it, and
answers a tenth of all prompts wrongly. So prompts with all digits at all places are asked as a user would ask them.

What has passed is trained no further, for the next step may cost it answers: the version that was checked is the one
that is tested at the end, and kept.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

STEADY_STEPS: Final = 4
AHEAD: Final = 2  # Batches in the log beyond those that are trained


class DemoTurn(Enum):
    PRODUCE = auto()
    WAIT = auto()
    CHECK = auto()
    END = auto()


class StoppingRule:
    """Says what is next. Without ``reward_up``, from which on a check is worth its while, all steps are taken."""

    def __init__(self, steps: int, *, reward_up: float | None) -> None:
        self._steps = steps
        self._reward_up = reward_up
        self._steps_checked = 0
        self._learned = False

    def turn(self, produced: int, trained: int, rewards: Sequence[float]) -> DemoTurn:
        if self._learned or trained == self._steps:
            return DemoTurn.END
        if self._is_due(rewards):
            return DemoTurn.CHECK if trained == produced else DemoTurn.WAIT
        return DemoTurn.PRODUCE if produced < min(trained + AHEAD, self._steps) else DemoTurn.WAIT

    def checked(self, exact: float, steps: int) -> None:
        """Take note of a check, of whose prompts the share ``exact`` was answered exactly."""
        self._steps_checked = steps
        self._learned = exact == 1.0

    def _is_due(self, rewards: Sequence[float]) -> bool:
        steady = rewards[self._steps_checked :][-STEADY_STEPS:]
        return self._reward_up is not None and len(steady) == STEADY_STEPS and min(steady) >= self._reward_up
