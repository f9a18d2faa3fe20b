"""How often a broker that dies is started again: what dies again and again has a reason that a start does not mend."""

from collections import deque

LIMIT = 3
WINDOW_S = 600.0


class Restarts:
    """Counts starts; pure.

    Args:
        limit: Most within the window.
        window_s: Seconds.
    """

    def __init__(self, limit: int = LIMIT, window_s: float = WINDOW_S) -> None:
        self._limit = limit
        self._window_s = window_s
        self._at: deque[float] = deque()

    def allow(self, now: float) -> bool:
        """Whether it may be started again now; counted if so.

        Args:
            now: Seconds, steady.
        """
        while self._at and now - self._at[0] >= self._window_s:
            self._at.popleft()
        if len(self._at) >= self._limit:
            return False
        self._at.append(now)
        return True
