"""When training ends early. Pure.

::

    training -- reward up for STEADY_STEPS --> to be checked -- LEARNED of the check's prompts answered --> learned
        ^                                            |
        '------------------- fewer ------------------'      for STEADY_STEPS at least

The mean reward of what is drawn does not tell: a model that never says one digit at one place keeps 0.975 of it, and
answers a tenth of all prompts wrongly. So prompts of all digits at all places are asked as a user would ask them.
"""

from collections.abc import Sequence
from typing import Final

from workers.demo.settings import LEARNED

REWARD_UP: Final = 0.98
STEADY_STEPS: Final = 4


class StopRule:
    """Says when to check, and what a check means."""

    def __init__(self) -> None:
        self._steps_checked = 0

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
        return exact >= LEARNED
