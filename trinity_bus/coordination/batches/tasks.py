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

from collections.abc import Sequence
from zlib import crc32

import msgspec
from msgspec import Struct, field

from schemas import ManifestEntry, Position, Task
from schemas.record import Metrics
from trinity_bus.coordination.batches.parts import AVERAGE, Attempt, Part, PartAnswer, Stretch, split, stretches
from trinity_bus.coordination.inputs import Origin
from trinity_bus.coordination.pools import Kind
from trinity_bus.coordination.state.codec import Value
from trinity_bus.coordination.state.tables import Row


class Progress(Row):
    """What attempts at a task that have ended left behind: ``progress/<task id>``, from the first one on."""

    last_ended: int = 0  # the highest number of one
    first_error: str | None = None
    # Of each part that has lost attempts, by index: how many, whether it has failed, and the explorer of the last.
    lost: dict[str, tuple[int, bool, str | None]] = field(default_factory=dict)
    lost_s: float = 0.0  # seconds that attempts without an answer took together, as far as that is known
    turns: Position | None = None  # of the first turn that one has completed; all lie in one partition
    # The runs of all parts, where one was cut; empty where they are as they were at its acceptance.
    stretches: list[Stretch] = field(default_factory=list)
    expected: int = 0  # tokens of a run, as its first answer tells where nothing was known; 0: as at its acceptance
    discarded: int = 0  # the highest number of an attempt when versions were discarded: its turns are not gone on with


class OpenTask(Value, array_like=True):
    """A task without a result. Its fields never change: they are an item of ``tasks/<n>``."""

    batch_id: str
    order: int  # number of its acceptance, over all tasks
    origin: Origin
    traceparent: str | None
    runs: int
    per_part: int | None  # runs of each part but the last; None: one part has all
    task: Task
    estimate: int = 0  # tokens of a run, as far as could be told at its acceptance
    weight: int = AVERAGE  # The same in percent of what is usual; 0: nothing was known, ``estimate`` is what is usual

    def __post_init__(self) -> None:
        self.task_id = self.task.task_id
        self.page = ""  # where it is kept in the changelog, see coordination.state.memory
        self.size = 0  # bytes of it, as they are kept there
        self.attempts = 0  # how many were started, at all parts: the number of the last one
        self.left = Progress()  # by attempts that have ended
        self.producer = ""  # who counts as its sender; follows from the task and its batch
        self.kind: Kind = ("", "")  # by which explorers are found that can run it; follows from the task
        # Explorers that work on its parts or have answered some, with how many: they may have its prompt in their
        # cache. This and ``parts_left`` follow from the parts, which nobody has tried yet.
        self.homes: dict[str, int] = {}
        self.parts = split(self.runs, self.per_part)
        self.parts_left = len(self.parts)  # that have not ended

    @property
    def total_runs(self) -> int:
        return sum([part.runs for part in self.parts])

    @property
    def expected(self) -> int:
        """Tokens of a run."""
        return self.left.expected or self.estimate

    @property
    def is_unknown(self) -> bool:
        """Whether nobody can say how long its responses are."""
        return not (self.weight or self.left.expected)

    @property
    def answers(self) -> list[PartAnswer]:
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
        attempt.weight = self.weight or AVERAGE
        part.running.append(attempt)
        self.homes[explorer] = self.homes.get(explorer, 0) + 1
        return attempt

    def resume(self, attempt: Attempt) -> None:
        running = self.parts[attempt.part].running
        attempt.weight = self.weight or AVERAGE
        running.append(attempt)
        # They come explorer by explorer; those of a part stand in the order in which they were started.
        running.sort(key=lambda attempt: attempt.number)
        self.attempts = max(self.attempts, attempt.number)
        self.homes[attempt.explorer] = self.homes.get(attempt.explorer, 0) + 1

    def stop(self, attempt: Attempt) -> Part:
        part = self.parts[attempt.part]
        part.running.remove(attempt)
        first = self.left.turns
        if attempt.turns is not None and (first is None or attempt.turns.offset < first.offset):
            self.left.turns = attempt.turns
        self.left.last_ended = max(self.left.last_ended, attempt.number)
        self.homes[attempt.explorer] -= 1
        if not self.homes[attempt.explorer]:
            del self.homes[attempt.explorer]
        return part

    def cut(self, part: Part, done: Sequence[int], failed_on: str) -> list[Part]:
        """Leave a part only the runs that are done, and return the parts that have the others: they have lost a try."""
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
        part.failed = True
        self.parts_left -= 1

    def lose(self, parts: Sequence[Part]) -> Progress:
        """Return what is kept of its attempts that have ended, with what was lost since at some parts."""
        # In place: a task may have hundreds of parts, and all may be lost at once. The caller puts it into its table.
        self.left.lost.update({str(part.index): (part.lost, part.failed, part.failed_on) for part in parts})
        return self.left

    def take_progress(self, progress: Progress) -> None:
        """Become what it was when this was kept, but for its answers; nothing else is known of it yet."""
        self.left = progress
        self.attempts = progress.last_ended
        if progress.stretches:
            self.parts = [Part(index, base, runs) for index, (base, runs) in enumerate(progress.stretches)]
            self.parts_left = len(self.parts)
        for index, (lost, failed, failed_on) in progress.lost.items():
            part = self.parts[int(index)]
            part.lost, part.failed_on = lost, failed_on
            if failed:
                self.fail(part)


class Result(Struct, array_like=True, frozen=True):
    """The one result of a task: an item of ``results/<n>/<batch id>``."""

    order: int  # of the task's acceptance; manifests are sorted by it
    entry: ManifestEntry
    metrics: Metrics  # of the task, reduced over its runs; of a failed one its time alone, of an aborted one nothing
    traceparent: str | None = None  # of the rollout that counts
    elapsed: list[float] = field(default_factory=list)  # seconds that its parts took, where that is known


def content_of(task: Task, kind: Kind) -> int:
    """Return a number that tasks with the same content share, whatever their ids; rarely, others have it too."""
    content = crc32("\n".join((*kind, task.prompt or "")).encode())
    for message in task.messages or ():
        content = crc32(str(message.content).encode(), content)
    return crc32(msgspec.msgpack.encode(task.data), content) if task.data else content
