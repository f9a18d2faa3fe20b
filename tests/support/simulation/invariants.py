"""The invariants of the mesh, held against everything that a coordinator is told and everything that it commits.

The observer sees inputs and committed effects, and the truth about what explorers produced; it never looks into the
machine. What it keeps of the explorers is what the coordinator has been told of them, as a careful reader keeps it.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby

from schemas import (
    AbortBatch,
    BatchLifecycleState,
    BatchRecord,
    BatchResult,
    Cancel,
    CancelTasks,
    CommandReply,
    Contribute,
    Dispatch,
    ExperiencePiece,
    ExplorerHeartbeat,
    ExplorerLeft,
    FinalizeBatch,
    ManifestEntry,
    ModelVersion,
    Position,
    ResultPart,
    RolloutFinished,
    StepTrained,
    SubmitBatch,
    Task,
    TaskResult,
    WeightsSynced,
)
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination import (
    TRANSITIONS,
    AnnounceVersion,
    CommandArrived,
    ContributionArrived,
    Effect,
    EventArrived,
    Fact,
    Input,
    Observe,
    Origin,
    PublishBatch,
    PublishResult,
    RejectTask,
    Request,
    SendOrder,
    SendReply,
    TaskArrived,
    staleness,
)

State = BatchLifecycleState
ENDED = (State.FINALIZED, State.ABORTED)
WORKING = (State.RUNNING, State.FINALIZING)

type AttemptName = tuple[str, int]
"""Task id and attempt."""
type CommandName = tuple[str, str]
"""Client and command id."""


class Invariant(StrEnum):
    """What must hold, whatever happens."""

    ONE_RESULT = "every accepted task ends in exactly one TaskResult"
    REAL = "a result names only experiences that were produced, by attempts that counted"
    WHOLE = "a completed task has each of its runs exactly once"
    ONCE = "over all manifests, each task and each experience is named at most once"
    MANIFEST = "a manifest says of its batch's tasks what their results said, of each once, and counts them right"
    TRANSITIONS = "batches make only the steps of the lifecycle"
    SEQUENCE = "sequences of FINALIZED train batches are 1, 2, 3 ..."
    STALENESS = "no sample of a FINALIZED train batch that follows the trainer is staler than max_staleness"
    INFLIGHT = "at most max_inflight_batches train batches are handed out and not ended"
    SLOTS = "no explorer is handed more than it has slots for, as far as is known of it"
    DISPATCH = "orders go to live explorers of the pool that know the workflow and serve the version, for open tasks"
    ATTEMPTS = "attempts are numbered without gaps, none above its limit, at most two at once for the same runs"
    EPOCHS = "an epoch names one membership, never comes back, and its members live and follow the trainer"
    REPLIES = "every command gets one reply for each time it is sent at most, always the same"
    REPLY_IS_TRUE = "a reply agrees with what has become of its batch"
    SAME_RESULT = "all who finalize a batch get the same result, that of its record"
    RESTORE = "a restored machine is the one that was killed, and decides like it"
    LIVENESS = "once faults stop, everything ends in a bounded time"
    MEMORY = "what is kept does not grow with what has ended"


AUTOMATIC = re.compile(r"(train|eval)-\d*")
"""Names of batches that the coordinator has named."""


class InvariantViolatedError(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: Invariant, detail: str) -> None:
        super().__init__(f"{invariant.name} ({invariant}): {detail}")
        self.invariant = invariant


def hold(condition: object, invariant: Invariant, detail: str) -> None:
    """Raises unless the condition is true."""
    if not condition:
        raise InvariantViolatedError(invariant, detail)


@dataclass(frozen=True, slots=True)
class Produced:
    """The truth about an attempt that gave experiences, or would have for an eval batch."""

    pieces: tuple[ExperiencePiece, ...]
    """Its records, in the order of its samples; none for an eval batch."""
    run_ids: tuple[int, ...]
    version_min: int
    fixed: bool = False
    """Whether it was drawn with a checkpoint that follows no trainer."""


@dataclass(slots=True)
class Told:
    """What the coordinator has been told of one incarnation of an explorer."""

    incarnation: str
    state: str
    slots: int
    version: int
    workflows: frozenset[str]
    pool: str | None
    fixed: bool
    outstanding: set[AttemptName] = field(default_factory=set)


class Invariants:
    """The observer.

    Args:
        settings: What the coordinator was started with.
    """

    def __init__(self, settings: CoordinatorSettings) -> None:
        self.settings = settings
        self.accepted: dict[str, Task] = {}
        self.results: dict[str, TaskResult] = {}
        self.results_of: dict[str, list[TaskResult]] = defaultdict(list)
        """Of each batch."""
        self.refused: Counter[str] = Counter()
        self.facts: Counter[Fact] = Counter()
        self.batches: dict[str, BatchRecord] = {}
        """The last record of each."""
        self.trained: list[BatchRecord] = []
        """FINALIZED train batches, in their order."""
        self.produced: dict[AttemptName, Produced] = {}
        """Told by the explorers of the simulation, not by their events."""
        self.told: dict[str, Told] = {}
        self.sends: Counter[CommandName] = Counter()
        self.effects: dict[CommandName, Request] = {}
        self.replies: dict[CommandName, list[CommandReply]] = defaultdict(list)
        self._last: dict[str, str] = {}
        """The newest incarnation of each explorer, lost ones too."""
        self._over: dict[str, set[str]] = defaultdict(set)
        self._dispatched: dict[str, list[Dispatch]] = defaultdict(list)
        self._ended_attempts: set[AttemptName] = set()
        self._countable: set[AttemptName] = set()
        """Attempts whose results came while they were wanted."""
        self._in_training: set[str] = set()
        self._named: Counter[tuple[int, int]] = Counter()
        self._manifested: set[str] = set()
        self._incarnations: set[tuple[str, str]] = set()
        """Lives of explorers that were known at any moment of this transaction."""
        self._groups: dict[int, list[tuple[str, str]]] = {}
        self._owners: dict[str, str] = {}
        """Of submitted batches."""
        self.in_pieces = 0
        """Answers that count and are in several records."""
        self.contributions: dict[CommandName, Produced] = {}
        """Told by the clients of the simulation: what they have made."""
        self._published = False
        """Whether anybody has trained."""
        self._before_training: set[str] = set()
        """Batches that got their place before."""
        self._told_results: dict[str, BatchResult | None] = {}
        self.keeps_sequences = True
        """Whether the state has level 3: before, a restart forgets which step an ended batch was."""

    # -- one transaction ---------------------------------------------------------------------------------------------

    def transaction(self, inputs: Sequence[Input], effects: Sequence[Effect]) -> None:
        """Looks at a committed transaction."""
        self._incarnations = {(name, told.incarnation) for name, told in self.told.items()}
        answered = {command.record.task_id for command in effects if isinstance(command, PublishResult)}
        refused = {command.origin for command in effects if isinstance(command, RejectTask)}
        for given in inputs:
            self._told(given, answered, refused)
        for command in effects:
            self._command(command)
        self._always()
        for told in self.told.values():
            forgotten = {task_id for task_id, _ in told.outstanding} & answered
            hold(not forgotten, Invariant.ATTEMPTS, f"{forgotten} ended, and attempts at them go on")

    def _told(self, given: Input, answered: set[str], refused: set[Origin]) -> None:
        match given:
            case TaskArrived(task=task, origin=origin):
                # One that nobody can run is accepted, failed and refused; one that came before is only refused.
                if origin not in refused or (task.task_id in answered and task.task_id not in self.accepted):
                    hold(task.task_id not in self.accepted, Invariant.ONE_RESULT, f"{task.task_id} is accepted twice")
                    self.accepted[task.task_id] = task
            case ContributionArrived(command=contribution):
                self.sends[contribution.client, contribution.command_id] += 1
                self.effects[contribution.client, contribution.command_id] = contribution
            case EventArrived(event=StepTrained()):
                self._published = True
            case CommandArrived(command=request):
                self.sends[request.client, request.command_id] += 1
                self.effects[request.client, request.command_id] = request
            case EventArrived(event=ExplorerHeartbeat() as beat):
                self._beat(beat)
            case EventArrived(event=ExplorerLeft() as left):
                self._gone(left.explorer, left.incarnation)
            case EventArrived(event=RolloutFinished() as finished):
                self._finished(finished)
            case EventArrived(event=WeightsSynced() as synced):
                self._synced(synced)
            case _:
                pass

    def _command(self, command: Effect) -> None:
        match command:
            case SendOrder(record=Dispatch() as dispatch):
                self._dispatch(dispatch)
            case SendOrder(record=Cancel() as cancel):
                self._cancel(cancel)
            case PublishBatch(record=batch):
                self._batch(batch)
            case PublishResult(record=result):
                self._result(result)
            case SendReply(record=reply):
                self._reply(reply)
            case AnnounceVersion(record=version):
                self._announcement(version)
            case RejectTask(refusal=refusal):
                self.refused[refusal.value] += 1
            case Observe(fact=fact, subject=subject):
                self.facts[fact] += 1
                if fact is Fact.EXPLORER_LOST:
                    self._lost(subject)

    def _always(self) -> None:
        limit = self.settings.max_inflight_batches
        hold(len(self._in_training) <= limit, Invariant.INFLIGHT, f"{sorted(self._in_training)} are handed out")

    # -- what the coordinator is told --------------------------------------------------------------------------------

    def _beat(self, beat: ExplorerHeartbeat) -> None:
        if beat.incarnation in self._over[beat.explorer]:
            return
        known = self.told.get(beat.explorer)
        if known is not None and known.incarnation != beat.incarnation:
            self._gone(beat.explorer, known.incarnation)
            known = None
        last = self._last.get(beat.explorer)
        if last is not None and last != beat.incarnation:
            self._over[beat.explorer].add(last)
        self._last[beat.explorer] = beat.incarnation
        self._incarnations.add((beat.explorer, beat.incarnation))
        self.told[beat.explorer] = Told(
            incarnation=beat.incarnation,
            state=beat.state,
            slots=beat.slots,
            version=beat.model_version,
            workflows=frozenset(beat.workflows),
            pool=beat.pool,
            fixed=beat.follows == "none",
            outstanding=known.outstanding if known else set(),
        )

    def _gone(self, explorer: str, incarnation: str) -> None:
        known = self.told.get(explorer)
        if known is not None and known.incarnation == incarnation:
            self._ended_attempts |= known.outstanding
            del self.told[explorer]
            self._over[explorer].add(incarnation)

    def _lost(self, explorer: str) -> None:
        """Silent for too long: what it had is given to others, and it may come back as the same incarnation."""
        known = self.told.pop(explorer, None)
        if known is not None:
            self._ended_attempts |= known.outstanding

    def _finished(self, event: RolloutFinished) -> None:
        known = self.told.get(event.explorer)
        name = (event.task_id, event.attempt)
        if known is not None and known.incarnation == event.incarnation and name in known.outstanding:
            known.outstanding.discard(name)
            self._ended_attempts.add(name)
            if event.status != "failed":
                self._countable.add(name)

    def _synced(self, event: WeightsSynced) -> None:
        known = self.told.get(event.explorer)
        if event.ok and known is not None and known.incarnation == event.incarnation:
            known.version = event.version
            known.state = "ready" if known.state == "syncing" else known.state

    # -- what it decides ---------------------------------------------------------------------------------------------

    def _dispatch(self, dispatch: Dispatch) -> None:
        task_id = dispatch.task.task_id
        told = self.told.get(dispatch.explorer)
        hold(told is not None, Invariant.DISPATCH, f"{task_id} goes to {dispatch.explorer}, which is gone")
        assert told is not None
        there = (told.incarnation, told.state)
        hold(
            there == (dispatch.incarnation, "ready"),
            Invariant.DISPATCH,
            f"{task_id} goes to {dispatch.explorer}: {there}",
        )
        hold(
            told.fixed or told.version >= dispatch.min_version,
            Invariant.DISPATCH,
            f"{task_id} goes to version {told.version}",
        )
        hold(told.pool == dispatch.task.pool, Invariant.DISPATCH, f"{task_id} goes to pool {told.pool}")
        hold(
            dispatch.task.workflow in told.workflows, Invariant.DISPATCH, f"{task_id} goes to one without its workflow"
        )
        hold(task_id in self.accepted, Invariant.DISPATCH, f"{task_id} was never accepted")
        hold(task_id not in self.results, Invariant.DISPATCH, f"{task_id} has its result")
        batch = self.batches[dispatch.batch_id]
        hold(batch.state not in ENDED, Invariant.DISPATCH, f"{task_id} is of {batch.batch_id}, which is {batch.state}")
        told.outstanding.add((task_id, dispatch.attempt))
        hold(len(told.outstanding) <= told.slots, Invariant.SLOTS, f"{dispatch.explorer} has {len(told.outstanding)}")
        self._attempt(dispatch)

    def _attempt(self, dispatch: Dispatch) -> None:
        task_id = dispatch.task.task_id
        before = self._dispatched[task_id]
        hold(
            dispatch.attempt == len(before) + 1,
            Invariant.ATTEMPTS,
            f"{task_id}: {dispatch.attempt} after {len(before)}",
        )
        before.append(dispatch)
        runs = runs_of(dispatch)
        total = self._total_runs(dispatch.task)
        longest = self.settings.max_repeat_times_per_runner or total
        hold(len(runs) <= longest and runs.stop <= total, Invariant.ATTEMPTS, f"{task_id}: runs {runs} of {total}")
        same = [other for other in before if set(runs_of(other)) & set(runs)]
        # What an attempt that broke off has done is not asked for again: its other runs may be several stretches.
        inside = all(set(runs) <= set(runs_of(other)) for other in same)
        hold(inside, Invariant.ATTEMPTS, f"{task_id} is split in two ways")
        hold(len(same) <= self._most_attempts(), Invariant.ATTEMPTS, f"{task_id}: {len(same)} attempts at runs {runs}")
        alive = [other for other in same if (task_id, other.attempt) not in self._ended_attempts]
        at_once = 1 if self.settings.straggler_factor is None else 2
        hold(len(alive) <= at_once, Invariant.ATTEMPTS, f"{task_id}: {len(alive)} attempts at once at runs {runs}")

    def _most_attempts(self) -> int:
        return self.settings.max_attempts

    def _cancel(self, cancel: Cancel) -> None:
        name = (cancel.task_id, cancel.attempt)
        known = cancel.attempt <= len(self._dispatched[cancel.task_id])
        hold(known, Invariant.ATTEMPTS, f"{name} is cancelled and was never ordered")
        self._ended_attempts.add(name)
        told = self.told.get(cancel.explorer)
        if told is not None and told.incarnation == cancel.incarnation:
            told.outstanding.discard(name)

    def _result(self, result: TaskResult) -> None:
        task_id = result.task_id
        hold(task_id in self.accepted, Invariant.ONE_RESULT, f"{task_id} was never accepted")
        hold(task_id not in self.results, Invariant.ONE_RESULT, f"{task_id} has a second result")
        self.results[task_id] = result
        self.results_of[result.batch_id].append(result)
        total = self._total_runs(self.accepted[task_id])
        hold(result.total_runs == total, Invariant.WHOLE, f"{task_id} has {result.total_runs} runs, not {total}")
        hold(
            result.attempts == len(self._dispatched[task_id]),
            Invariant.ATTEMPTS,
            f"{task_id}: {result.attempts} attempts told, {len(self._dispatched[task_id])} were ordered",
        )
        runs = self._check_parts(task_id, result.batch_type, result.parts)
        if result.status == "completed":
            hold(
                sorted(runs) == list(range(total)), Invariant.WHOLE, f"{task_id} is completed with runs {sorted(runs)}"
            )
            hold(
                result.completed_runs == total,
                Invariant.WHOLE,
                f"{task_id} is completed with {result.completed_runs} runs",
            )
        elif result.status == "partial":
            hold(0 < len(runs) < total, Invariant.WHOLE, f"{task_id} is partial with runs {sorted(runs)} of {total}")
            hold(result.completed_runs == len(runs), Invariant.WHOLE, f"{task_id}: {result.completed_runs} runs {runs}")
            hold(result.error, Invariant.WHOLE, f"{task_id} does not say why it is partial")
        else:
            hold(not result.parts, Invariant.WHOLE, f"{task_id} is {result.status} and has parts")
            hold(result.error, Invariant.WHOLE, f"{task_id} does not say why it is {result.status}")

    def _check_parts(self, task_id: str, batch_type: str, parts: Iterable[ResultPart]) -> list[int]:
        runs: list[int] = []
        for attempt, records in groupby(parts, lambda part: part.attempt):
            name = (task_id, attempt)
            truth = self.produced.get(name)
            hold(truth is not None, Invariant.REAL, f"{name} produced nothing")
            assert truth is not None
            hold(name in self._countable, Invariant.REAL, f"{name} was not wanted any more when it ended")
            said = [(part.position, part.samples) for part in records]
            lies: list[tuple[Position | None, int]] = [(piece.position, piece.samples) for piece in truth.pieces]
            hold(bool(lies) == (batch_type == "train"), Invariant.REAL, f"{name} of an {batch_type} batch: {lies}")
            hold(len(said) <= max(1, len(lies)), Invariant.WHOLE, f"{name} is said to lie at {said}, more than it has")
            hold(said == (lies or [(None, 0)]), Invariant.REAL, f"{name} is said to lie at {said}, it lies at {lies}")
            self.in_pieces += len(said) > 1
            runs += truth.run_ids
        hold(len(set(runs)) == len(runs), Invariant.WHOLE, f"{task_id} has runs {sorted(runs)}")
        return runs

    def _batch(self, batch: BatchRecord) -> None:
        before = self.batches.get(batch.batch_id)
        if before is None:
            hold(batch.state is State.PENDING, Invariant.TRANSITIONS, f"{batch.batch_id} begins as {batch.state}")
        else:
            legal = batch.state in TRANSITIONS[before.state]
            hold(legal, Invariant.TRANSITIONS, f"{batch.batch_id} goes from {before.state} to {batch.state}")
        self.batches[batch.batch_id] = batch
        if batch.state is State.RUNNING and not self._published:
            self._before_training.add(batch.batch_id)
        if is_ordered(batch):
            change = self._in_training.add if batch.state in WORKING else self._in_training.discard
            change(batch.batch_id)
        if batch.state is State.FINALIZED:
            self._finalized(batch)
        elif batch.state is State.ABORTED:
            hold(batch.reason, Invariant.TRANSITIONS, f"{batch.batch_id} is aborted and does not say why")
            self._aborted(batch)
        else:
            hold(not batch.manifest, Invariant.MANIFEST, f"{batch.batch_id} is {batch.state} and has a manifest")

    def _finalized(self, batch: BatchRecord) -> None:
        of_batch = self.results_of[batch.batch_id]
        for entry in batch.manifest:
            self._named_once(entry)
        tasks = [entry.task_id for entry in batch.manifest]
        hold(sorted(tasks) == sorted(r.task_id for r in of_batch), Invariant.MANIFEST, f"{batch.batch_id} has {tasks}")
        for entry in batch.manifest:
            self._entry(batch, entry)
        statuses = Counter(entry.status for entry in batch.manifest)
        counts = (batch.completed_task_count, batch.failed_task_count, batch.aborted_task_count)
        right = (len(tasks) - statuses["aborted"], statuses["failed"], statuses["aborted"])
        hold(counts == right, Invariant.MANIFEST, f"{batch.batch_id} counts {counts} of {statuses}")
        self._enough(batch, right[0])
        if batch.batch_type == "eval" or not batch.manifest:
            hold(
                batch.sequence == 0, Invariant.SEQUENCE, f"{batch.batch_id} is not trained on, and is {batch.sequence}"
            )
            return
        hold(batch.sequence == len(self.trained) + 1, Invariant.SEQUENCE, f"{batch.sequence} after {len(self.trained)}")
        self.trained.append(batch)
        for entry in batch.manifest:
            for part in entry.parts:
                truth = self.produced[entry.task_id, part.attempt]
                old = staleness(batch.sequence, truth.version_min)
                limit = self.settings.max_staleness
                hold(
                    truth.fixed or old <= limit or batch.batch_id in self._before_training,
                    Invariant.STALENESS,
                    f"{entry.task_id} of batch {batch.sequence} is {old} versions old",
                )

    def _enough(self, batch: BatchRecord, finished: int) -> None:
        """A train batch ends with all its tasks, or with as many as it was to wait for."""
        if batch.batch_type != "train" or batch.expected_task_count is None:
            return
        least = batch.expected_task_count
        if batch.min_wait_num is not None:
            least = 1 if self._was_finalized_by_a_client(batch) else min(batch.min_wait_num, least)
        cancelled = self._was_cancelled(batch)
        hold(
            finished >= least or cancelled,
            Invariant.MANIFEST,
            f"{batch.batch_id} ended with {finished} of {least} tasks",
        )

    def _was_finalized_by_a_client(self, batch: BatchRecord) -> bool:
        return any(isinstance(c, FinalizeBatch) and c.batch_id == batch.batch_id for c in self.effects.values())

    def _was_cancelled(self, batch: BatchRecord) -> bool:
        return any(isinstance(c, CancelTasks) and c.batch_id == batch.batch_id for c in self.effects.values())

    def _entry(self, batch: BatchRecord, entry: ManifestEntry) -> None:
        result = self.results[entry.task_id]
        said = (entry.status, entry.parts, entry.error, entry.version_min, entry.version_max)
        told = (result.status, result.parts, result.error, result.version_min, result.version_max)
        hold(said == told, Invariant.MANIFEST, f"{batch.batch_id} says {said}, the result was {told}")

    def _named_once(self, entry: ManifestEntry) -> None:
        hold(entry.task_id not in self._manifested, Invariant.ONCE, f"{entry.task_id} is in a second manifest")
        self._manifested.add(entry.task_id)
        for part in entry.parts:
            if part.position is not None:
                where = (part.position.partition, part.position.offset)
                self._named[where] += 1
                hold(self._named[where] == 1, Invariant.ONCE, f"the experience at {where} is named twice")

    def _aborted(self, batch: BatchRecord) -> None:
        for entry in batch.manifest:
            runs = self._check_parts(entry.task_id, batch.batch_type, entry.parts)
            hold(entry.task_id in self.results, Invariant.MANIFEST, f"{entry.task_id} is kept and has no result")
            hold(
                bool(runs) == (entry.status in ("completed", "partial")),
                Invariant.MANIFEST,
                f"{entry.task_id} has {runs}",
            )

    def _reply(self, reply: CommandReply) -> None:
        if reply.result is not None and not self.keeps_sequences:
            reply = reply.model_copy(update={"result": reply.result.model_copy(update={"sequence": 0})})
        name = (reply.client, reply.command_id)
        replies = self.replies[name]
        replies.append(reply)
        hold(
            len(replies) <= self.sends[name], Invariant.REPLIES, f"{name}: {len(replies)} replies to {self.sends[name]}"
        )
        if reply != replies[0]:
            raise InvariantViolatedError(Invariant.REPLIES, f"{name} is told {reply}, after {replies[0]}")
        if len(replies) == 1:
            command = self.effects[name]
            self._check_reply(command, reply)
            if isinstance(command, Contribute) and reply.error is None:
                self._contributed(command.task_id, self.contributions[name])

    def _contributed(self, task_id: str, truth: Produced) -> None:
        hold(task_id not in self.accepted, Invariant.ONE_RESULT, f"{task_id} is contributed, and was accepted before")
        runs = len(truth.run_ids)
        self.accepted[task_id] = Task(task_id=task_id, workflow="math", prompt="", repeat_times=runs)
        self.produced[task_id, 1] = truth
        self._countable.add((task_id, 1))

    def _check_reply(self, command: Request, reply: CommandReply) -> None:
        batch_id = getattr(command, "batch_id", getattr(command, "task_id", None))
        batch = None if batch_id is None else self.batches.get(batch_id)
        state = None if batch is None else batch.state
        match command:
            case SubmitBatch():
                if reply.error is None:
                    self._owners[command.batch_id] = command.client
                known = reply.error is None or state is not None or reply.error == "batch_too_large"
                right = state is not None if reply.error is None else known
            case AbortBatch():
                right = reply.error is None and (state is None or state in ENDED)
            case Contribute():
                right = reply.error != "known_task" or command.task_id in self.accepted
            case FinalizeBatch():
                right = self._finalize_is_true(command, reply, batch)
            case _:
                right = reply.error in (None, "unknown_batch")
        if not right or reply.batch_id != batch_id:
            raise InvariantViolatedError(Invariant.REPLY_IS_TRUE, f"{command} is told {reply}, the batch is {state}")

    def _finalize_is_true(self, command: FinalizeBatch, reply: CommandReply, batch: BatchRecord | None) -> bool:
        if batch is None:
            return reply.error == "unknown_batch"
        is_over = batch.state in ENDED
        if reply.error is None:
            return is_over and batch.batch_type == command.batch_type and self._is_its_result(reply.result, batch)
        return {
            "wrong_type": batch.batch_type != command.batch_type,
            "timeout": not is_over and (batch.batch_type == "train" or not self._owns(command)),
            "open_batch": batch.expected_task_count is None,
        }.get(reply.error, False)

    def _owns(self, command: FinalizeBatch) -> bool:
        """Whether a client ends the batch when its time is up: its own, or one that is anybody's."""
        by_name = "*" if AUTOMATIC.fullmatch(command.batch_id) else ""
        return self._owners.get(command.batch_id, by_name) in ("", command.client)

    def _is_its_result(self, result: BatchResult | None, batch: BatchRecord) -> bool:
        first = self._told_results.setdefault(batch.batch_id, result)
        hold(first == result, Invariant.SAME_RESULT, f"{result}, and before {first}")
        if result is None:
            return False
        hold(result.state is batch.state, Invariant.SAME_RESULT, f"{result} of a batch that is {batch.state}")
        if batch.state is State.FINALIZED:
            said = (result.finished_task_count, result.metrics)
            of_record = (batch.completed_task_count, batch.metrics)
            hold(said == of_record, Invariant.SAME_RESULT, f"{said}, the record says {of_record}")
        return True

    def _announcement(self, version: ModelVersion) -> None:
        group = [(member.explorer, member.incarnation) for member in version.members]
        first = self._groups.setdefault(version.epoch, group)
        hold(first == group, Invariant.EPOCHS, f"epoch {version.epoch} has members {first} and {group}")
        hold(version.epoch == max(self._groups), Invariant.EPOCHS, f"epoch {version.epoch} comes back")
        ranks = [member.rank for member in version.members]
        hold(ranks == list(range(1, len(ranks) + 1)), Invariant.EPOCHS, f"ranks are {ranks}")
        for member in version.members:
            alive = (member.explorer, member.incarnation) in self._incarnations
            hold(alive, Invariant.EPOCHS, f"{member.explorer} is a member of epoch {version.epoch} and does not live")
            told = self.told.get(member.explorer)
            hold(told is None or not told.fixed, Invariant.EPOCHS, f"{member.explorer} follows nobody and is a member")

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _total_runs(self, task: Task) -> int:
        return task.repeat_times or self.settings.group_size

    def open_batches(self) -> set[str]:
        """Batches that have not ended."""
        return {batch.batch_id for batch in self.batches.values() if batch.state not in ENDED}

    def without_result(self) -> set[str]:
        """Accepted tasks that have not ended."""
        return self.accepted.keys() - self.results.keys()

    def without_reply(self) -> set[CommandName]:
        """Commands that were never answered."""
        return self.effects.keys() - {name for name, replies in self.replies.items() if replies}


def runs_of(dispatch: Dispatch) -> range:
    """The runs that an order asks for."""
    return range(dispatch.run_id_base, dispatch.run_id_base + dispatch.repeat_times)


def is_ordered(batch: BatchRecord) -> bool:
    """Whether a batch takes a place in the order of training."""
    return batch.batch_type == "train" and batch.expected_task_count is not None


def least_finished(expected: int, settings: CoordinatorSettings) -> int:
    """Tasks that must have finished before over-rollout lets a batch of this size end."""
    return math.ceil(expected * (1 - settings.over_rollout_ratio))
