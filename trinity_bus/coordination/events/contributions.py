"""Contributions: experiences that were made elsewhere, counted as a rollout's answer is.

::

    client --records--> experiences         (durable, in the name of who contributes them)
      |----Contribute, positions----> who runs the machine reads the records: ``Examination``
                                               |
                 refused, by name <------------+--> ANSWERED task in the batch that is being filled
                                                          |
                        the batch gets its place in training: too stale by then --> failed
                                                          '--> completed, in the batch's manifest

The task of a contribution is one like others, whose one part has its answer when it is accepted. What it may be drawn
with is known when its batch gets its place, so its result is told then; where even the next place would be too late it
is refused at once. It is accepted once: its id is that of a task, and the reply to its command is remembered. What
could be contributed under several ids, because several gateways know of it, names the others in ``covers``.

==================  ==================================================================================================
refused as          because
==================  ==================================================================================================
``known_task``      a task of this id was accepted before, contributed or not, or one of an id that it covers
``too_stale``       a version that drew it is older than the next batch in training may be drawn with
``unknown_version`` it says of no version, or of one that was never published
``beyond_the_log``  a position holds no record: never written, or deleted
``wrong_record``    no experiences, those of another task, author, attempt or number of samples, or one record twice
``over_limit``      it is larger than tasks may be here, or too much is open now: try again
==================  ==================================================================================================
"""

from schemas import BatchRecord, Contribute, Task
from schemas.command import CommandError
from trinity_bus.coordination.batches.parts import PartAnswer, StoredPart
from trinity_bus.coordination.effects import Fact, RejectionReason
from trinity_bus.coordination.events.endings import Endings
from trinity_bus.coordination.inputs import ContributionArrived, Examined, Origin, TaskArrived, Uncountable
from trinity_bus.coordination.limits import records_left
from trinity_bus.coordination.machine_state import Handler, MachineState

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
            refusal = self._refusal(command, task)
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
        first, *more = (
            StoredPart(found.attempt, piece.samples, (piece.position.partition, piece.position.offset))
            for piece in command.pieces
        )
        answer = PartAnswer(
            part=first,
            completed_runs=len(found.runs),
            whole=True,
            metrics=found.runs,
            version_min=command.version_min,
            version_max=command.version_max,
            seconds=0.0,
            elapsed=None,
            error=None,
            explorer=command.producer or command.client,
            traceparent=arrived.traceparent,
            more=more,
        )
        new_batch = self._ledger.accept(TaskArrived(task, Origin(0, 0), arrived.traceparent), answer)
        self._ledger.cover(command.covers or ())
        if new_batch is not None:
            self._out.publish_batch(new_batch.record())

    def _refusal(self, command: Contribute, task: Task) -> Refusal | None:
        refused = self._ledger.refusal(task)
        if refused is not None and refused[0] is RejectionReason.DUPLICATE_TASK:
            return "known_task", refused[1]
        covered = next(filter(self._ledger.knows, command.covers or ()), None)
        if covered is not None:
            return "known_task", f"some of it was accepted before, as {covered!r} or with it"
        return (
            self._of_versions(command)
            or (None if refused is None else ("over_limit", refused[1]))
            or self._too_much(command)
        )

    def _of_versions(self, command: Contribute) -> Refusal | None:
        newest = max(self._sync.newest, 0)
        if command.version_min < 0 or command.version_max > newest:
            drawn = f"versions {command.version_min} to {command.version_max}"
            return "unknown_version", f"drawn by {drawn}; there are 0 to {newest}"
        next_sequence = self._ledger.admission.next_sequence
        needed = self._needed(self._policy.version_needed(next_sequence, self._sync.version))
        if command.version_min < needed:
            return "too_stale", _stale(command.version_min, needed)
        return None

    def _needed(self, version: int) -> int:
        # None is needed before anybody has trained.
        return version if self._sync.version >= 0 else 0

    def _too_much(self, command: Contribute) -> Refusal | None:
        most = records_left(self._settings.batch_size, self._settings.max_batch_parts, 0)
        if len(command.pieces) > most:
            return "over_limit", f"it is in {len(command.pieces)} records, a task of a batch here may have {most}"
        if not self._ledger.wants_tasks():
            return "over_limit", "coordinator.max_open_tasks are open; send it again when some have ended"
        return None


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
