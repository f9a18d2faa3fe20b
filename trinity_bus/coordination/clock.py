"""Time as the coordinator counts it: it never runs backward and never jumps.

A process that was stopped or starved for a minute must not conclude that everybody else was silent for that minute:
their heartbeats wait unread. So a gap between two readings counts for at most ``longest_step_s``, and a reading below
the last one counts for nothing.
"""


class SteadyClock:
    """Turns readings of any clock into a steady one that starts at 0.

    Attributes:
        now: Seconds counted so far.
    """

    def __init__(self, longest_step_s: float) -> None:
        self.now = 0.0
        self._longest_step_s = longest_step_s
        self._reading: float | None = None

    def advance(self, reading: float) -> float:
        """Take a reading, in seconds on any scale; return the counted time."""
        if self._reading is not None:
            self.now += min(max(reading - self._reading, 0.0), self._longest_step_s)
        self._reading = reading
        return self.now
