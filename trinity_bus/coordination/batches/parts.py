"""The parts of a task: stretches of its runs, each done by one attempt.

A task whose ``repeat_times`` is above ``max_repeat_times_per_runner`` is split, and its parts may run on several
explorers at once. The runs of all parts together are one group.

::

    QUEUED --start--> RUNNING --an attempt is good---------------------------------------> ANSWERED
       ^                 |
       |                 +-- failed, timed out, explorer gone; no other attempt at it --+
       |                 |                                                              |
       |                 |     +------------------- tries left -----------------------<-+>-- none left --> FAILED
       |                 |     v
       +-----------------+--- some runs are done: ANSWERED for these; each stretch of the others is a part of its own

A part has one running attempt, or two where a speculative one beside a slow one was started; the first good one
answers, the other is cancelled. Once an attempt has ended, nothing that it still says counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from schemas import Position, ResultPart
from schemas.record import Metrics
from trinity_bus.coordination.state.codec import Value
from trinity_bus.coordination.state.tables import Row

type Stretch = tuple[int, int]  # first run of a part, and how many it has

type AttemptKey = tuple[str, int]  # task id and number of an attempt

AVERAGE: Final = 100  # the weight of an attempt whose responses are expected to be as long as others are


class Attempt(Value, array_like=True):
    """One try at a part of a task, on one incarnation of one explorer."""

    task_id: str
    part: int  # index of the part
    number: int  # 1, 2, 3 ... over all parts of the task
    timeout_s: float
    turns: Position | None = None  # of the first turn that it has completed, as its explorer has told

    def __post_init__(self) -> None:
        self.key: AttemptKey = (self.task_id, self.number)
        self.explorer = self.incarnation = ""
        # On the machine's own clock; set again by a restart, so that time spent dead is not charged to the attempt.
        self.deadline = self.timeout_s
        self.started: float | None = None  # on the machine's own clock; None if that was before a restart
        self.weight = AVERAGE  # in the load of its explorer; follows from its task

    def place(self, explorer: str, incarnation: str, now: float) -> None:
        self.explorer, self.incarnation, self.deadline = explorer, incarnation, now + self.timeout_s


class PartAnswer(Row, array_like=True):
    parts: list[ResultPart]  # its experiences; several where a group is too large for one record
    completed_runs: int
    metrics: list[Metrics]  # one map of each run, and one with the time that all took
    version_min: int
    version_max: int
    seconds: float  # as its explorer says
    elapsed: float | None  # seconds from its dispatch to its answer; None if a restart lies between them
    error: str | None  # why these are not all runs of the part
    explorer: str
    traceparent: str | None  # of the rollout


@dataclass(slots=True)
class Part:
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
