"""When a command is sent again, and when waiting for its reply is given up. Pure: no clock.

::

    send --> WAITING --the reply--> ANSWERED
              |  ^
              |  '-- again_s without a reply: sent again, under the same id
              '-- silence_s without a word from any coordinator --> GIVEN UP

A command that is answered at once (all but FinalizeBatch) hears of the coordinator by its own reply. One that may wait
for hours is accompanied by a question that any coordinator answers at once, so that a long wait and a dead coordinator
can be told apart.
"""

from dataclasses import dataclass
from enum import StrEnum

AGAIN_S = 5.0
SILENCE_S = 30.0


class Step(StrEnum):
    """What to do now."""

    WAIT = "wait"
    AGAIN = "again"
    GIVE_UP = "give_up"


@dataclass(slots=True)
class Patience:
    """Of one command. All times are seconds on one clock that never runs backward.

    Args:
        sent_at: When it was sent first.
        again_s: Time without a reply after which it is sent again.
        silence_s: Time without a word from a coordinator after which it is given up.
    """

    sent_at: float
    again_s: float = AGAIN_S
    silence_s: float = SILENCE_S
    last_sent_at: float = 0.0

    def __post_init__(self) -> None:
        self.last_sent_at = self.sent_at

    def step(self, now: float, heard_at: float | None) -> Step:
        """What to do.

        Args:
            now: The time.
            heard_at: When a coordinator was last heard, by anyone; ``None`` if never.
        """
        if now >= self._end(heard_at):
            return Step.GIVE_UP
        return Step.AGAIN if now >= self.last_sent_at + self.again_s else Step.WAIT

    def pause(self, now: float, heard_at: float | None) -> float:
        """Seconds until there is something to do."""
        return max(0.0, min(self.last_sent_at + self.again_s, self._end(heard_at)) - now)

    def sent(self, now: float) -> None:
        """It was sent again."""
        self.last_sent_at = now

    def _end(self, heard_at: float | None) -> float:
        return self.silence_s + (self.sent_at if heard_at is None else max(self.sent_at, heard_at))
