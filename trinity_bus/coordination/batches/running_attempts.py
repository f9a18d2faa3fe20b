"""The attempts that explorers are at, of all tasks, and when their time is up."""

from trinity_bus.coordination.batches.parts import Attempt, AttemptKey
from trinity_bus.coordination.deadlines import Deadlines


class RunningAttempts(dict[AttemptKey, Attempt]):
    """By key, in the order in which they began."""

    def __init__(self) -> None:
        super().__init__()
        self._deadlines: Deadlines[AttemptKey] = Deadlines()

    def add(self, attempt: Attempt) -> None:
        self[attempt.key] = attempt
        self._deadlines.set(attempt.key, attempt.deadline)

    def __delitem__(self, key: AttemptKey) -> None:
        super().__delitem__(key)
        self._deadlines.forget(key)

    def overdue(self, now: float) -> list[Attempt]:
        """Return those whose time is up. Each is returned once: whoever asks ends it."""
        return [self[key] for key in self._deadlines.take(now)]
