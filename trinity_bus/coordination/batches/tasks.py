"""An accepted task, from acceptance to its one result.

::

        accepted --> parts queued and running --+-- all parts answered, each whole ------------> completed
                                                +-- all parts ended, some runs are done -------> partial (1)
                                                +-- a part has failed for good ----------------> failed  (2)
                                                +-- its batch ends, or its client cancels it --> partial (3) or aborted

(1) With ``return_partial_tasks``: the attempts at a part that break off count for the runs that they have done. In an
    open batch, whose client decides what counts, runs of whole parts do.
(2) At once, and its other parts are cancelled; with ``return_partial_tasks``, and in an open batch, when no part has a
    run to show for itself.
(3) Where partial results were asked for and at least one part is answered.

The result of a failed task is its *first* error: later ones are often its consequences.
"""

import dataclasses
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct, field

from schemas import ManifestEntry, Task
from schemas.batch import TaskStatus
from schemas.record import Metrics
from trinity_bus.coordination.batches.parts import (
    Attempt,
    LostPart,
    Part,
    PartAnswer,
    StoredPart,
    Stretch,
    split,
    stretches,
)
from trinity_bus.coordination.pools import Kind
from trinity_bus.coordination.state.tables import Row


class AcceptedTask(Struct, array_like=True, frozen=True):
    """What never changes about a task: an item of ``tasks/<n>``."""

    batch_id: str
    order: int  # number of its acceptance, over all tasks
    partition: int
    offset: int
    traceparent: str | None
    runs: int
    per_part: int | None  # runs of each part but the last; None: one part has all
    task: Task


class Progress(Row):
    """What attempts at a task that have ended left behind: ``progress/<task id>``, from the first one on."""

    last_ended: int = 0  # the highest number of one
    first_error: str | None = None
    parts: list[LostPart] = field(default_factory=list)  # those that have lost attempts
    lost_s: float = 0.0  # seconds that attempts without an answer took together, as far as that is known
    # Partition and offset of the first turn that one has completed; all its turns lie in one partition.
    turns: tuple[int, int] | None = None
    # The runs of all parts, where one was cut; empty where they are as they were at its acceptance.
    stretches: list[Stretch] = field(default_factory=list)


@dataclass(slots=True)
class OpenTask:
    """A task without a result. It is made with parts that nobody has tried yet."""

    accepted: AcceptedTask
    page: str  # where it is kept in the changelog, see coordination.state.pages
    size: int  # bytes of it, as they are kept there
    attempts: int = 0  # how many were started, at all parts: the number of the last one
    left: Progress = dataclasses.field(default_factory=Progress)  # by attempts that have ended
    producer: str = ""  # who counts as its sender; follows from the task and its batch
    kind: Kind = ("", "")  # by which explorers are found that can run it; follows from the task
    # Explorers that work on its parts or have answered some, with how many: they may have its prompt in their cache.
    # This and ``parts_left`` follow from the parts.
    homes: dict[str, int] = dataclasses.field(default_factory=dict, compare=False)
    parts: list[Part] = dataclasses.field(init=False)
    parts_left: int = dataclasses.field(init=False, compare=False)  # parts that have not ended

    def __post_init__(self) -> None:
        self.parts = split(self.accepted.runs, self.accepted.per_part)
        self.parts_left = len(self.parts)

    @property
    def task_id(self) -> str:
        return self.accepted.task.task_id

    @property
    def batch_id(self) -> str:
        return self.accepted.batch_id

    @property
    def total_runs(self) -> int:
        return sum([part.runs for part in self.parts])

    @property
    def answers(self) -> list[PartAnswer]:
        """Answers of the parts that have one, in the order of their runs."""
        return [part.answer for part in self.parts if part.answer is not None]

    @property
    def records(self) -> int:
        return sum([len(answer.parts) for answer in self.answers])

    @property
    def running(self) -> list[Attempt]:
        return [attempt for part in self.parts for attempt in part.running]

    def start(self, part: Part, explorer: str, incarnation: str, timeout_s: float, now: float) -> Attempt:
        self.attempts += 1
        attempt = Attempt(self.task_id, part.index, self.attempts, timeout_s)
        attempt.place(explorer, incarnation, now)
        attempt.started = now
        part.running.append(attempt)
        self.homes[explorer] = self.homes.get(explorer, 0) + 1
        return attempt

    def resume(self, attempt: Attempt) -> None:
        """Note that the attempt was running when the coordinator stopped, and still is."""
        running = self.parts[attempt.part].running
        running.append(attempt)
        # They come explorer by explorer; those of a part stand in the order in which they were started.
        running.sort(key=lambda attempt: attempt.number)
        self.attempts = max(self.attempts, attempt.number)
        self.homes[attempt.explorer] = self.homes.get(attempt.explorer, 0) + 1

    def stop(self, attempt: Attempt) -> Part:
        """Note that the running attempt has ended, one way or another. Return its part."""
        part = self.parts[attempt.part]
        part.running.remove(attempt)
        if attempt.turns is not None:
            self.left.turns = min(attempt.turns, self.left.turns or attempt.turns)
        self.left.last_ended = max(self.left.last_ended, attempt.number)
        self.homes[attempt.explorer] -= 1
        if not self.homes[attempt.explorer]:
            del self.homes[attempt.explorer]
        return part

    def cut(self, part: Part, done: Sequence[int], failed_on: str) -> list[Part]:
        """Leave a part only the runs that are done, and return the parts that have the others: they have lost a try.

        Nothing of the part runs; ``done`` is ascending.
        """
        missing = sorted(set(range(part.run_id_base, part.run_id_base + part.runs)).difference(done))
        new = [
            Part(len(self.parts) + i, base, runs, lost=part.lost + 1, failed_on=failed_on)
            for i, (base, runs) in enumerate(stretches(missing))
        ]
        part.run_id_base, part.runs = done[0], len(done)
        self.parts += new
        self.parts_left += len(new)
        self.left.stretches = [(part.run_id_base, part.runs) for part in self.parts]
        return new

    def answer(self, part: Part, answer: PartAnswer) -> None:
        part.answer = answer
        self.parts_left -= 1
        self.homes[answer.explorer] = self.homes.get(answer.explorer, 0) + 1

    def fail(self, part: Part) -> None:
        """Note that the part will not be tried again."""
        part.failed = True
        self.parts_left -= 1

    def lose(self, parts: Sequence[Part]) -> Progress:
        """Return what is kept of its attempts that have ended, with what was lost since at some parts.

        The other parts are not looked at: a task may have hundreds, and all of them may be lost at once.
        """
        for part in parts:
            self.left.parts = _with(self.left.parts, part)
        return self.left

    def take_stretches(self, progress: Progress) -> None:
        """Have the parts that it had when this was kept; nothing else is known of them yet."""
        if progress.stretches:
            self.parts = [Part(index, base, runs) for index, (base, runs) in enumerate(progress.stretches)]
            self.parts_left = len(self.parts)

    def take_progress(self, progress: Progress) -> None:
        """Become what it was when this was kept."""
        self.left = progress
        self.attempts = progress.last_ended
        for kept in progress.parts:
            part = self.parts[kept.index]
            part.lost, part.failed_on = kept.lost, kept.failed_on
            if kept.failed:
                self.fail(part)


def _with(kept: list[LostPart], part: Part) -> list[LostPart]:
    # ``kept``, which is sorted by index, with one of the parts as it is now.
    at = bisect_left(kept, part.index, key=lambda of: of.index)
    known = at < len(kept) and kept[at].index == part.index
    now = kept[at] if known else LostPart(part.index)
    return [
        *kept[:at],
        now.but(lost=part.lost, failed=part.failed, failed_on=part.failed_on),
        *kept[at + known :],
    ]


class Result(Struct, array_like=True, frozen=True):
    """The one result of a task: an item of ``results/<n>/<batch id>``."""

    order: int  # of the task's acceptance; manifests are sorted by it
    task_id: str
    status: TaskStatus
    parts: list[StoredPart]
    error: str | None
    version_min: int
    version_max: int
    metrics: Metrics  # of the task, reduced over its runs; of a failed one its time alone, of an aborted one nothing
    traceparent: str | None  # of the rollout that counts
    elapsed: list[float]  # seconds that its parts took, where that is known

    @property
    def entry(self) -> ManifestEntry:
        return ManifestEntry(
            task_id=self.task_id,
            status=self.status,
            parts=[part.record for part in self.parts],
            error=self.error,
            version_min=self.version_min,
            version_max=self.version_max,
        )
