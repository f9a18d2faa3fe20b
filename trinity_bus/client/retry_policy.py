"""When a command is sent again, and when waiting for its reply is given up. Pure: no clock.

::

    send --> WAITING --the reply--> ANSWERED
              |  ^
              |  '-- again_s without a reply: sent again, under the same id
              '-- silence_s without a word from any coordinator --> GIVEN UP

A command that is answered at once (all but FinalizeBatch) hears of the coordinator by its own reply. One that may wait
for hours is accompanied by a question that any coordinator answers at once, so that a long wait and a dead coordinator
can be told apart.

While the broker takes no commands, silence says nothing about the coordinator: it is borne for ``outage_s``, as every
service bears it, and counts anew when the broker is back.
"""

from enum import StrEnum

AGAIN_S = 5.0
SILENCE_S = 30.0


class RetryStep(StrEnum):
    WAIT = "wait"
    AGAIN = "again"
    GIVE_UP = "give_up"


class RetryPolicy:
    # All times are seconds on one clock that never runs backward. ``taken``: whether the broker took it when it was
    # sent first, at ``now``; ``outage_s``: as ``silence_s`` while the broker takes nothing.
    def __init__(
        self, now: float, *, taken: bool, again_s: float = AGAIN_S, silence_s: float = SILENCE_S, outage_s: float = 0.0
    ) -> None:
        self._again_s = again_s
        self._silence_s = silence_s
        self._outage_s = max(outage_s, silence_s)
        self._since = now
        self._last_sent_at = now
        self._taken = taken

    def step(self, now: float, heard_at: float | None) -> RetryStep:
        """Return what to do. ``heard_at``: when a coordinator was last heard, by anyone; ``None`` if never."""
        if now >= self._end(heard_at):
            return RetryStep.GIVE_UP
        return RetryStep.AGAIN if now >= self._last_sent_at + self._again_s else RetryStep.WAIT

    def pause(self, now: float, heard_at: float | None) -> float:
        """Seconds until there is something to do."""
        return max(0.0, min(self._last_sent_at + self._again_s, self._end(heard_at)) - now)

    def sent(self, now: float, *, taken: bool) -> None:
        if taken and not self._taken:
            self._since = now
        self._last_sent_at, self._taken = now, taken

    def _end(self, heard_at: float | None) -> float:
        limit = self._silence_s if self._taken else self._outage_s
        return limit + (self._since if heard_at is None else max(self._since, heard_at))
