"""The life of one accepted task: queued, running, and one result at the end.

::

        accepted --> QUEUED --start--> RUNNING --completed, partial--------------> result
                        ^                 |
                        |                 +-- failed, timed out, explorer gone --+
                        |                                                        |
                        +------------------ attempts left ----------------------<+>-- none left --> result: failed

At most one attempt runs at a time. An attempt is known by its number; once it has failed, nothing that it still says
counts. The result of a failed task is its *first* error: later ones are often its consequences.
"""

from dataclasses import dataclass, field

from schemas import ManifestEntry, Task
from schemas.record import Metrics
from trinity_bus.coordination.inputs import Origin


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a task, on one life of one explorer."""

    number: int
    explorer: str
    incarnation: str
    timeout_s: float
    deadline: float = field(compare=False)
    """On the machine's own clock; set anew by a restart, so that time spent dead is not charged to the attempt."""

    def is_of(self, number: int, explorer: str, incarnation: str) -> bool:
        """Whether a result with these names is a result of this attempt."""
        return (self.number, self.explorer, self.incarnation) == (number, explorer, incarnation)


@dataclass(slots=True)
class OpenTask:
    """A task without a result."""

    task: Task
    batch_id: str
    order: int
    """Number of its acceptance, over all tasks."""
    origin: Origin
    traceparent: str | None
    attempts: int = 0
    """How many were started."""
    running: Attempt | None = None
    first_error: str | None = None
    failed_on: str | None = None
    """The explorer of the last failed attempt; another one is preferred for the next."""

    def start(self, explorer: str, incarnation: str, timeout_s: float, now: float) -> Attempt:
        """Begins the next attempt."""
        self.attempts += 1
        self.running = Attempt(self.attempts, explorer, incarnation, timeout_s, now + timeout_s)
        return self.running

    def fail(self, error: str) -> None:
        """The running attempt is over without a result."""
        if self.running is not None:
            self.failed_on = self.running.explorer
        self.running = None
        self.first_error = self.first_error or error


@dataclass(frozen=True, slots=True)
class Result:
    """The one result of a task."""

    order: int
    """Of the task's acceptance; manifests are sorted by it."""
    entry: ManifestEntry
    metrics: Metrics
    """Of the task, reduced over its runs; empty for a failed one."""
    traceparent: str | None
    """Context of the rollout that counts."""
    failed: bool
    """Whether it counts as no answer at all; a partial result is an answer."""
