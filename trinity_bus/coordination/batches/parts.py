"""The parts of a task: stretches of its runs, each done by one attempt.

A task whose ``repeat_times`` is above ``max_repeat_times_per_runner`` is split, and its parts may run on several
explorers at once; any other task is one part. The runs of all parts together are one group.

::

    QUEUED --start--> RUNNING --an attempt is good---------------------------------------> ANSWERED
       ^                 |
       |                 +-- failed, timed out, explorer gone; no other attempt at it --+
       |                 |                                                              |
       |                 |     +------------------- tries left -----------------------<-+>-- none left --> FAILED
       |                 |     v
       +-----------------+--- some runs are done: ANSWERED for these; each stretch of the others is a part of its own

A part has one running attempt, or two where a speculative one beside a slow one was started; the first good one
answers, the other is cancelled. An attempt is known by the id of its task and its number; no two attempts at a task,
whatever the part, have the same. Once it has ended, nothing that it still says counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas import Position, ResultPart
from schemas.record import Metrics
from trinity_bus.coordination.deadlines import Deadlines
from trinity_bus.coordination.state.codec import Value
from trinity_bus.coordination.state.tables import Row

type Stretch = tuple[int, int]  # first run of a part, and how many it has

type AttemptKey = tuple[str, int]  # task id and number of an attempt


class Attempt(Value, array_like=True):
    """One try at a part of a task, on one incarnation of one explorer."""

    task_id: str
    part: int  # index of the part
    number: int  # 1, 2, 3 ... over all parts of the task
    timeout_s: float
    # Partition and offset of the first turn that it has completed, as its explorer has told.
    turns: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.explorer = self.incarnation = ""
        # On the machine's own clock; set again by a restart, so that time spent dead is not charged to the attempt.
        self.deadline = self.timeout_s
        self.started: float | None = None  # on the machine's own clock; None if that was before a restart

    def place(self, explorer: str, incarnation: str, now: float) -> None:
        """Say who runs it, and that its time begins now."""
        self.explorer, self.incarnation, self.deadline = explorer, incarnation, now + self.timeout_s

    @property
    def key(self) -> AttemptKey:
        return self.task_id, self.number


class RunningAttempts(dict[AttemptKey, Attempt]):
    """The attempts that explorers run, of all tasks, by key, in the order in which they began; and their deadlines."""

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


class StoredPart(Value, array_like=True):
    """A ``ResultPart`` as the state keeps it: in the state's own form, whatever becomes of the record's."""

    attempt: int
    samples: int
    place: tuple[int, int] | None  # partition and offset of its experiences

    @property
    def record(self) -> ResultPart:
        position = None if self.place is None else Position(partition=self.place[0], offset=self.place[1])
        return ResultPart(attempt=self.attempt, samples=self.samples, position=position)


class PartAnswer(Row, array_like=True):
    part: StoredPart  # its experiences; of a group in several records, the first
    completed_runs: int
    whole: bool  # whether these are all runs of the part
    metrics: list[Metrics]  # one map of each run, and one with the time that all took
    version_min: int
    version_max: int
    seconds: float  # as its explorer says
    elapsed: float | None  # seconds from its dispatch to its answer; None if a restart lies between them
    error: str | None
    explorer: str
    traceparent: str | None  # of the rollout
    # The other records of its group.
    more: list[StoredPart] = []  # noqa: RUF012 - msgspec gives each its own

    @property
    def parts(self) -> list[StoredPart]:
        """All records of its experiences, in their order."""
        return [self.part, *self.more]


class LostPart(Value, array_like=True):
    """What attempts without an answer have left behind at a part."""

    index: int
    lost: int = 0
    failed: bool = False
    failed_on: str | None = None


@dataclass(slots=True)
class Part:
    """A stretch of a task's runs."""

    index: int
    run_id_base: int  # its first run
    runs: int  # how many: those that follow, but for an ANSWERED one that was cut
    lost: int = 0  # attempts that ended without an answer
    failed: bool = False  # whether it will not be tried again
    # The explorer of the last attempt that was lost; another one is preferred for the next.
    failed_on: str | None = None
    running: list[Attempt] = field(default_factory=list)
    answer: PartAnswer | None = None

    @property
    def ended(self) -> bool:
        return self.failed or self.answer is not None

    @property
    def queued(self) -> bool:
        return not self.running and not self.ended

    @property
    def tries(self) -> int:
        return self.lost + len(self.running)


def stretches(runs: Sequence[int]) -> list[Stretch]:
    """Return ascending numbers as stretches without a gap.

    >>> stretches([0, 2, 3, 7])
    [(0, 1), (2, 2), (7, 1)]
    """
    found: list[Stretch] = []
    for run in runs:
        if found and sum(found[-1]) == run:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((run, 1))
    return found


def split(runs: int, per_part: int | None) -> list[Part]:
    """Return the parts of a task: ``per_part`` runs each, fewer in the last; None: one part has all."""
    size = runs if per_part is None else per_part
    return [Part(index, base, min(size, runs - base)) for index, base in enumerate(range(0, runs, size))]
