"""The invariants of the mesh, held against everything that a coordinator is told and everything that it commits.

The observer sees inputs and committed effects, and the truth about what explorers produced; it never looks into the
machine. What it keeps of the explorers is what the coordinator has been told of them, as a careful reader keeps it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby

from schemas import (
    BatchRecord,
    Cancel,
    CommandReply,
    Dispatch,
    ExplorerHeartbeat,
    ExplorerLeft,
    ModelVersion,
    Position,
    ResultPart,
    RolloutFinished,
    StepTrained,
    Task,
    TaskResult,
    WeightsSynced,
)
from tests.support.effects import written
from tests.support.simulation.batch_rules import BatchRules
from tests.support.simulation.invariant import AttemptName, CommandName, Invariant, Produced, Told, hold
from tests.support.simulation.reply_rules import ENDED, ReplyRules
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination import (
    CommandArrived,
    ContributionArrived,
    Effect,
    EventArrived,
    Fact,
    Input,
    Observe,
    Origin,
    RejectTask,
    Request,
    TaskArrived,
    Write,
)


class Invariants:
    def __init__(self, settings: CoordinatorSettings) -> None:
        self.settings = settings
        self.accepted: dict[str, Task] = {}
        self.results: dict[str, TaskResult] = {}
        self.results_of: dict[str, list[TaskResult]] = defaultdict(list)  # of each batch
        self.refused: Counter[str] = Counter()
        self.facts: Counter[Fact] = Counter()
        self.batches: dict[str, BatchRecord] = {}  # the last record of each
        self.trained: list[BatchRecord] = []  # FINALIZED train batches, in their order
        self.produced: dict[AttemptName, Produced] = {}  # told by the explorers of the simulation, not by their events
        self.told: dict[str, Told] = {}
        self.sends: Counter[CommandName] = Counter()
        self.effects: dict[CommandName, Request] = {}
        self.replies: dict[CommandName, list[CommandReply]] = defaultdict(list)
        self._last: dict[str, str] = {}  # the newest incarnation of each explorer, lost ones too
        self._over: dict[str, set[str]] = defaultdict(set)
        self._dispatched: dict[str, list[Dispatch]] = defaultdict(list)
        self._ended_attempts: set[AttemptName] = set()
        self._given_back: set[AttemptName] = set()
        """Attempts that an explorer which leaves does not work on: they cost no try."""
        self._countable: set[AttemptName] = set()  # attempts whose results came while they were wanted
        self._incarnations: set[tuple[str, str]] = set()
        """Lives of explorers that were known at any moment of this transaction."""
        self._groups: dict[int, list[tuple[str, str]]] = {}
        self.in_pieces = 0  # answers that count and are in several records
        self.contributions: dict[CommandName, Produced] = {}
        """Told by the clients of the simulation: what they have made."""
        self.published = False  # whether anybody has trained
        self._batch_rules, self._reply_rules = BatchRules(self), ReplyRules(self)

    def transaction(self, inputs: Sequence[Input], effects: Sequence[Effect]) -> None:
        self._incarnations = {(name, told.incarnation) for name, told in self.told.items()}
        answered = {result.task_id for result in written(effects, TaskResult)}
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
                self.published = True
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
            case Write(record=Dispatch() as dispatch):
                self._dispatch(dispatch)
            case Write(record=Cancel() as cancel):
                self._cancel(cancel)
            case Write(record=BatchRecord() as batch):
                self._batch_rules.check(batch)
            case Write(record=TaskResult() as result):
                self._result(result)
            case Write(record=CommandReply() as reply):
                self._reply_rules.check(reply)
            case Write(record=ModelVersion() as version):
                self._announcement(version)
            case RejectTask(refusal=refusal):
                self.refused[refusal.value] += 1
            case Observe(fact=fact, subject=subject):
                self.facts[fact] += 1
                if fact is Fact.EXPLORER_LOST:
                    self._lost(subject)

    def _always(self) -> None:
        limit = self.settings.max_inflight_batches
        detail = f"{sorted(self._batch_rules.in_training)} are handed out"
        hold(len(self._batch_rules.in_training) <= limit, Invariant.INFLIGHT, detail)

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
        if beat.state == "draining":
            self._gives_back(self.told[beat.explorer], {(one.task_id, one.attempt) for one in beat.running})

    def _gives_back(self, explorer: Told, kept: set[AttemptName]) -> None:
        back = explorer.outstanding - kept
        explorer.outstanding -= back
        self._ended_attempts |= back
        self._given_back |= back

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

    def _dispatch(self, dispatch: Dispatch) -> None:
        task_id = dispatch.task.task_id
        told = self.told.get(dispatch.explorer)
        hold(told is not None, Invariant.DISPATCH, f"{task_id} goes to {dispatch.explorer}, which is gone")
        assert told is not None
        there = (told.incarnation, told.state)
        detail = f"{task_id} goes to {dispatch.explorer}: {there}"
        hold(there == (dispatch.incarnation, "ready"), Invariant.DISPATCH, detail)
        detail = f"{task_id} goes to version {told.version}"
        hold(told.fixed or told.version >= dispatch.min_version, Invariant.DISPATCH, detail)
        hold(told.pool == dispatch.task.pool, Invariant.DISPATCH, f"{task_id} goes to pool {told.pool}")
        detail = f"{task_id} goes to one without its workflow"
        hold(dispatch.task.workflow in told.workflows, Invariant.DISPATCH, detail)
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
        detail = f"{task_id}: {dispatch.attempt} after {len(before)}"
        hold(dispatch.attempt == len(before) + 1, Invariant.ATTEMPTS, detail)
        before.append(dispatch)
        runs = runs_of(dispatch)
        total = self._total_runs(dispatch.task)
        longest = self.settings.max_repeat_times_per_runner or total
        hold(len(runs) <= longest and runs.stop <= total, Invariant.ATTEMPTS, f"{task_id}: runs {runs} of {total}")
        same = [other for other in before if set(runs_of(other)) & set(runs)]
        # What an attempt that broke off has done is not asked for again: its other runs may be several stretches.
        inside = all(set(runs) <= set(runs_of(other)) for other in same)
        hold(inside, Invariant.ATTEMPTS, f"{task_id} is split in two ways")
        tries = [other for other in same if (task_id, other.attempt) not in self._given_back]
        detail = f"{task_id}: {len(tries)} tries at runs {runs}"
        hold(len(tries) <= self.settings.max_attempts, Invariant.ATTEMPTS, detail)
        alive = [other for other in same if (task_id, other.attempt) not in self._ended_attempts]
        at_once = 1 if self.settings.straggler_factor is None else 2
        hold(len(alive) <= at_once, Invariant.ATTEMPTS, f"{task_id}: {len(alive)} attempts at once at runs {runs}")

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
        detail = f"{task_id}: {result.attempts} attempts told, {len(self._dispatched[task_id])} were ordered"
        hold(result.attempts == len(self._dispatched[task_id]), Invariant.ATTEMPTS, detail)
        runs = self.check_parts(task_id, result.batch_type, result.parts)
        if result.status == "completed":
            detail = f"{task_id} is completed with runs {sorted(runs)}"
            hold(sorted(runs) == list(range(total)), Invariant.WHOLE, detail)
            detail = f"{task_id} is completed with {result.completed_runs} runs"
            hold(result.completed_runs == total, Invariant.WHOLE, detail)
        elif result.status == "partial":
            hold(0 < len(runs) < total, Invariant.WHOLE, f"{task_id} is partial with runs {sorted(runs)} of {total}")
            hold(result.completed_runs == len(runs), Invariant.WHOLE, f"{task_id}: {result.completed_runs} runs {runs}")
            hold(result.error, Invariant.WHOLE, f"{task_id} does not say why it is partial")
        else:
            hold(not result.parts, Invariant.WHOLE, f"{task_id} is {result.status} and has parts")
            hold(result.error, Invariant.WHOLE, f"{task_id} does not say why it is {result.status}")

    def check_parts(self, task_id: str, batch_type: str, parts: Iterable[ResultPart]) -> list[int]:
        """Look at what a result or a manifest says of a task; return the runs that it names."""
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

    def contributed(self, task_id: str, truth: Produced) -> None:
        hold(task_id not in self.accepted, Invariant.ONE_RESULT, f"{task_id} is contributed, and was accepted before")
        runs = len(truth.run_ids)
        self.accepted[task_id] = Task(task_id=task_id, workflow="math", prompt="", repeat_times=runs)
        self.produced[task_id, 1] = truth
        self._countable.add((task_id, 1))

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

    def _total_runs(self, task: Task) -> int:
        return task.repeat_times or self.settings.group_size

    def open_batches(self) -> set[str]:
        return {batch.batch_id for batch in self.batches.values() if batch.state not in ENDED}

    def without_result(self) -> set[str]:
        return self.accepted.keys() - self.results.keys()

    def without_reply(self) -> set[CommandName]:
        return self.effects.keys() - {name for name, replies in self.replies.items() if replies}


def runs_of(dispatch: Dispatch) -> range:
    return range(dispatch.run_id_base, dispatch.run_id_base + dispatch.repeat_times)
