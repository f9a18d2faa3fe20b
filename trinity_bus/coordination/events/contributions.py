"""Contributions: experiences that were made elsewhere, counted as a rollout's answer is.

A client writes records to ``experiences``, and names their positions in a ``Contribute``. Whoever runs the machine
reads them (:class:`Examination`). A contribution is a task of the batch that is being filled, whose one part has its
answer when it is accepted. What it may be drawn with is known when its batch gets its place in training, so its result
is told then. What could be contributed under several ids, because several gateways know of it, names the others in
``covers``. docs/batches.md lists why one is refused.
"""

from collections.abc import Iterable, Iterator

from schemas import BatchRecord, Contribute, ExperienceGroup, ExperiencePiece, ResultPart, Task
from schemas.command import CommandError
from schemas.record import Metrics
from schemas.task import MAX_REPEAT_TIMES
from trinity_bus.coordination.batches.parts import PartAnswer
from trinity_bus.coordination.effects import Fact, RejectionReason
from trinity_bus.coordination.events.endings import Endings
from trinity_bus.coordination.inputs import ContributionArrived, Examined, Finding, Origin, TaskArrived, Uncountable
from trinity_bus.coordination.limits import records_left
from trinity_bus.coordination.machine_state import Handler, MachineState
from trinity_bus.rollout.metrics import Folded

MAX_METRICS = 4096  # of all runs of one contribution: they are kept until its batch has its place

type Refusal = tuple[CommandError, str]


class Contributions(Handler):
    def __init__(self, state: MachineState, endings: Endings) -> None:
        super().__init__(state)
        self._endings = endings

    def handle(self, arrived: ContributionArrived) -> None:
        command, found = arrived.command, arrived.found
        refusal: Refusal | None = None
        if isinstance(found, Uncountable):
            refusal = found.error, found.detail
        else:
            task = _task_of(command, found)
            refusal = next(self._refusals(command, task), None)
            if refusal is None:
                self._accept(arrived, found, task)
        error, detail = refusal or (None, f"task {command.task_id} waits for its batch")
        if error is not None:
            self._out.observe(Fact.CONTRIBUTION_REFUSED, command.task_id, f"{error}: {detail}")
        self._out.add(self._replies.give(command, error, detail, arrived.traceparent))

    def count(self, admitted: BatchRecord) -> None:
        """Tell the results of what was contributed to a batch that has its place now."""
        batch = self._ledger.batches.get(admitted.batch_id)
        if batch is None:
            return
        for task in list(batch.contributed.values()):
            drawn = task.answers[0].version_min
            needed = self._needed(batch.min_version)
            if drawn < needed:
                self._endings.fail_task(task, _stale(drawn, needed))
            else:
                self._endings.finish_answered_task(task)

    def _accept(self, arrived: ContributionArrived, found: Examined, task: Task) -> None:
        command = arrived.command
        answer = PartAnswer(
            parts=[
                ResultPart(attempt=found.attempt, samples=piece.samples, position=piece.position)
                for piece in command.pieces
            ],
            completed_runs=len(found.runs),
            metrics=found.runs,
            version_min=command.version_min,
            version_max=command.version_max,
            seconds=0.0,
            elapsed=None,
            error=None,
            explorer=command.producer or command.client,
            traceparent=arrived.traceparent,
        )
        new_batch = self._ledger.accept(TaskArrived(task, Origin(0, 0), arrived.traceparent), answer)
        for task_id in command.covers or ():
            # What it stands for was contributed under another id.
            self._ledger.done.add(task_id)
        if new_batch is not None:
            self._out.publish_batch(new_batch.record())

    def _refusals(self, command: Contribute, task: Task) -> Iterator[Refusal]:
        refused = self._ledger.refusal(task)
        if refused is not None and refused[0] is RejectionReason.DUPLICATE_TASK:
            yield "known_task", refused[1]
        covered = next(filter(self._ledger.knows, command.covers or ()), None)
        if covered is not None:
            yield "known_task", f"some of it was accepted before, as {covered!r} or with it"
        newest = max(self._sync.newest, 0)
        if command.version_min < 0 or command.version_max > newest:
            drawn = f"versions {command.version_min} to {command.version_max}"
            yield "unknown_version", f"drawn by {drawn}; there are 0 to {newest}"
        next_sequence = self._ledger.admission.next_sequence
        needed = self._needed(self._policy.version_needed(next_sequence, self._sync.version))
        if command.version_min < needed:
            yield "too_stale", _stale(command.version_min, needed)
        if refused is not None:
            yield "over_limit", refused[1]
        most = records_left(self._settings.batch_size, self._settings.max_batch_parts, 0)
        if len(command.pieces) > most:
            yield "over_limit", f"it is in {len(command.pieces)} records, a task of a batch here may have {most}"
        if not self._ledger.wants_tasks():
            yield "over_limit", "coordinator.max_open_tasks are open; send it again when some have ended"

    def _needed(self, version: int) -> int:
        # None is needed before anybody has trained.
        return version if self._sync.version >= 0 else 0


def _task_of(command: Contribute, found: Examined) -> Task:
    return Task(
        task_id=command.task_id,
        workflow=found.workflow,
        prompt="",
        repeat_times=len(found.runs),
        producer=command.producer or command.client,
    )


def _stale(drawn: int, needed: int) -> str:
    return f"too stale: drawn with version {drawn}, its batch needs {needed} or newer"


class Examination:
    """Whether the records of a contribution can count. They are looked at one by one, and none is kept."""

    def __init__(self, command: Contribute) -> None:
        self._command = command
        self._attempt = 0
        self._workflow = ""
        self._versions: list[int] = []
        self._runs: dict[int, dict[str, Folded]] = {}

    def misnamed(self) -> Uncountable | None:
        places = {(piece.position.partition, piece.position.offset) for piece in self._command.pieces}
        if len(places) < len(self._command.pieces):
            return Uncountable("wrong_record", "two of its pieces are the same record")
        return None

    def add(self, piece: ExperiencePiece, record: object) -> Uncountable | None:
        """Look at what lies at the position of the next piece; return why it cannot count."""
        if not isinstance(record, ExperienceGroup):
            return Uncountable("wrong_record", "a position holds no experiences that can be read")
        if not self._versions:
            self._attempt, self._workflow = record.attempt, record.workflow
        author = self._command.producer or self._command.client
        said = (record.task_id, record.explorer, record.batch_type, record.attempt, len(record))
        named = (self._command.task_id, author, "train", self._attempt, piece.samples)
        if said != named:
            return Uncountable("wrong_record", f"(task, author, type, attempt, samples) are {said}, named were {named}")
        self._versions += _versions(record)
        for run_id, metrics in _steps(record):
            run = self._runs.setdefault(run_id, {})
            for key, value in metrics.items():
                run.setdefault(key, Folded(key)).add(value)
        count = sum(map(len, self._runs.values()))
        if len(self._runs) > MAX_REPEAT_TIMES or count > MAX_METRICS:
            limits = f"{MAX_REPEAT_TIMES} with {MAX_METRICS} metrics are the most"
            return Uncountable("over_limit", f"{len(self._runs)} runs with {count} metrics; {limits}")
        return None

    def finding(self) -> Finding:
        drawn = min(self._versions), max(self._versions)
        if drawn != (self._command.version_min, self._command.version_max):
            claimed = f"{self._command.version_min} to {self._command.version_max}"
            return Uncountable("wrong_record", f"drawn by versions {drawn[0]} to {drawn[1]}, named were {claimed}")
        runs = [{key: folded.result for key, folded in run.items()} for run in self._runs.values()]
        return Examined(attempt=self._attempt, workflow=self._workflow, runs=runs)


def _versions(group: ExperienceGroup) -> tuple[int, int]:
    # The lowest and highest version; -1 where a sample says of none.
    drawn = group.versions[:, 2].tolist()
    if len(set(group.versions[:, 0].tolist())) < len(group):
        return -1, max(drawn, default=-1)
    return min(drawn), max(drawn)


def _steps(group: ExperienceGroup) -> Iterable[tuple[int, Metrics]]:
    # The run of each sample, and its metrics: its reward where it has none.
    metrics = group.metrics or [{"reward": reward} for reward in group.rewards.tolist()]
    return zip(group.run_ids.tolist(), metrics, strict=True)
