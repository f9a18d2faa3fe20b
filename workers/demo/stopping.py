"""When training ends early. Pure.

::

    training --- reward up for STEADY_STEPS ---> check --- all right, CHECKS times in a row ---> learned
        ^                                          |
        '---------------- otherwise ---------------'

The mean reward of what is drawn does not tell: a model that never says one digit at one place keeps 0.975 of it, and
answers a tenth of all prompts wrongly. So prompts with all digits at all places are asked as a user would ask them. One
such check does not tell either: while the model is still moving, the next step may cost it a few answers.
"""

from collections.abc import Sequence
from typing import Final

REWARD_UP: Final = 0.98
STEADY_STEPS: Final = 4
CHECKS: Final = 2


class StopRule:
    """Says when to check, and what checks mean."""

    def __init__(self) -> None:
        self._steps_checked = 0
        self._passed = 0

    def is_due(self, rewards: Sequence[float]) -> bool:
        """Whether the model is to be checked, given the rewards of all steps so far."""
        steady = rewards[self._steps_checked :][-STEADY_STEPS:]
        return len(steady) == STEADY_STEPS and min(steady) >= REWARD_UP

    def has_learned(self, exact: float, steps: int) -> bool:
        """Take note of a check; return whether the model has learned.

        Args:
            exact: Share of its prompts that were answered exactly.
            steps: Trained before it.
        """
        self._steps_checked = steps
        self._passed = self._passed + 1 if exact == 1.0 else 0
        return self._passed == CHECKS
