"""How long an attempt may take: the task's own limit, and a shorter one that follows from experience.

With ``dynamic_timeout_ratio`` set, an attempt that starts after ``dynamic_timeout_warmup_steps`` train batches were
finalized, or drained by a ``Scheduler``, may take ``ratio`` times what attempts at train tasks took on average, from
dispatch to result. All of them count that ended by an answer, a failure or running out of time; not those that were
cancelled or whose explorer died, nor those across a restart of the coordinator, which nobody has timed. A task is
bounded by ``max_attempts`` such limits for each of its parts, besides the time that it waits to be handed out.
"""

from schemas.record import BatchType
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination.batches.parts import Attempt
from trinity_bus.coordination.state.counters import Counters


class AttemptTimeouts:
    def __init__(self, settings: CoordinatorSettings, counters: Counters) -> None:
        self._settings = settings
        self._counters = counters

    def limit(self, timeout_s: float | None = None) -> float:
        """Seconds that an attempt which starts now may take, at a task with this limit of its own."""
        settings, counters = self._settings, self._counters
        own = timeout_s or settings.task_timeout_s
        steps = counters.finalized + counters.drained
        warm = steps >= settings.dynamic_timeout_warmup_steps and counters.timed_attempts > 0
        if settings.dynamic_timeout_ratio is None or not warm:
            return own
        mean = counters.attempt_seconds / counters.timed_attempts
        # A limit is above 0 even if everything so far took no time at all.
        return min(own, max(mean * settings.dynamic_timeout_ratio, settings.tick_s))

    def ended(self, attempt: Attempt, batch_type: BatchType, now: float) -> float | None:
        """Note that an attempt has ended. Return how long it took; None if that is not known."""
        if attempt.started is None:
            return None
        seconds = now - attempt.started
        if batch_type == "train":
            self._counters.timed_attempts += 1
            self._counters.attempt_seconds += seconds
        return seconds
