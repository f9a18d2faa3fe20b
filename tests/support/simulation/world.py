"""A SIMULATED mesh: what may happen to it, one happening at a time, and what must follow once nothing goes wrong.

::

    clients --tasks, commands--> log --a transaction--> coordinator's machine --> lanes of explorers, batches, replies
    explorers, trainer --events--^       (killed before or after its commit, restored, fenced by a successor)

Records of one sender come in their order, as Kafka keeps them; between senders there is none. They come late, and some
twice. All chance is drawn from one generator, so that a history can be repeated from its seed.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Literal

from schemas import BatchLifecycleState, BatchRecord, Cancel, Contribute, Dispatch, ExplorerLeft, ModelVersion
from tests.support.simulation.clients import Clients
from tests.support.simulation.coordinator import Changes, FencedError, Log, Process, compared
from tests.support.simulation.invariant import Invariant, Produced, hold
from tests.support.simulation.invariants import Invariants
from tests.support.simulation.reply_rules import AUTOMATIC
from tests.support.simulation.size import EMPTY_HOUSE, ITEMS_PER_BATCH, ITEMS_PER_TASK, size_of
from tests.support.simulation.witness import Honest
from tests.support.simulation.workers import Explorer, Status, Trainer
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination import (
    CommandArrived,
    ContributionArrived,
    Effect,
    EventArrived,
    Examined,
    Finding,
    Input,
    Origin,
    Request,
    TaskArrived,
    Tick,
    Uncountable,
    Write,
)
from trinity_bus.coordination.inputs import Event

type Death = Literal["before", "after"] | None
"""Whether the coordinator dies in a transaction, and on which side of its commit."""

TASK_PARTITIONS = 2
SHADOWED = 4  # transactions for which a restored machine must decide as the one that was killed
ROUNDS = 250
ROUNDS_PER_BATCH = 6
"""In which all must have ended, once faults have stopped: some for time-outs, some for each batch to be trained."""


class World:
    def __init__(self, rng: random.Random, settings: CoordinatorSettings, witness: Honest | None = None) -> None:
        self.rng = rng
        self.settings = settings
        self.invariants = Invariants(settings)
        self.log = Log()
        self.process = Process(settings, self.log)
        self.zombie: Process | None = None
        self.clients = Clients(rng)
        self.trainer = Trainer()
        self.explorers = {
            name: Explorer(name, slots=3 + i, workflows=["math", "rare"] if i == 1 else ["math"])
            for i, name in enumerate(("explorer-0", "explorer-1", "explorer-2"))
        }
        self.explorers["judge-0"] = Explorer("judge-0", slots=2, workflows=["math"], pool="judge", fixed=True)
        self.now = 100.0
        self.inputs = 0  # events in all: tasks, commands, events of workers and ticks that were decided on
        self.healed = False
        self._witness = witness or Honest()
        self._heard: deque[tuple[str, Event]] = deque(maxlen=30)
        self._shadow: tuple[Process, int] | None = None
        self._offsets = 0
        self._found: dict[str, Finding] = {}  # what is found of each contribution, by the id of its command

    def transaction(self, *, tick: bool = False, dies: Death = None, most: int = 1) -> None:
        inputs = self._read(most)
        if tick:
            inputs.append(Tick())
        if not inputs:
            return
        effects, changes = self.process.decide(inputs, self.now)
        if dies == "before":
            self._successor()
            return
        self.process.commit(self._witness.stored(changes))
        self.inputs += len(inputs)
        self._compare_with_shadow(inputs, effects, changes)
        self.invariants.transaction(*self._witness.decided(self, inputs, effects))
        for command in effects:
            self._carry_out(command)
        if dies == "after":
            self.restart()
        self._zombie_wakes(inputs)

    def restart(self) -> None:
        """The coordinator dies between two transactions. Its successor is what it was."""
        before = self.process
        hold(before.machine.entries() == self.log.changelog, Invariant.RESTORE, "changes do not add up to the state")
        self._successor()
        detail = "entries differ from the changelog"
        hold(self.process.machine.entries() == self.log.changelog, Invariant.RESTORE, detail)
        # It decides on the same records as its successor, once.
        self.zombie, self._shadow = None, (before, SHADOWED)

    def _successor(self) -> None:
        self.zombie = self.process
        self._shadow = None
        self.process = Process(self.settings, self.log)

    def _read(self, most: int) -> list[Input]:
        inputs: list[Input] = []
        for _ in range(most):
            waiting = self._waiting()
            if not waiting:
                break
            inputs += self.process.read(self.rng.choice(waiting), 1)
        return inputs

    def _waiting(self) -> list[str]:
        return self.log.unread(self.process.positions, tasks=self.process.machine.wants_tasks())

    def _zombie_wakes(self, inputs: list[Input]) -> None:
        """The process before this one decides on the same records, and must not be able to commit."""
        if self.zombie is None:
            return
        zombie, self.zombie = self.zombie, None
        _, changes = zombie.decide(inputs, self.now)
        self._is_fenced(zombie, changes)

    @staticmethod
    def _is_fenced(process: Process, changes: Changes) -> None:
        try:
            process.commit(changes)
        except FencedError:
            return
        raise AssertionError("the simulation lets a fenced process commit")

    def _compare_with_shadow(self, inputs: list[Input], effects: list[Effect], changes: Changes) -> None:
        """While no time passes, the machine that was killed would go on as the restored one does."""
        if self._shadow is None:
            return
        shadow, left = self._shadow
        self._shadow = None
        if any(isinstance(given, Tick) for given in inputs):
            return
        would = shadow.decide(inputs, self.now)
        self._is_fenced(shadow, would[1])
        expected, found = compared(*would), compared(effects, changes)
        hold(found == expected, Invariant.RESTORE, f"on {inputs}: {found}, the one before: {expected}")
        if left > 1:
            self._shadow = (shadow, left - 1)

    def _carry_out(self, command: Effect) -> None:
        match command:
            case Write(record=Dispatch() | Cancel() as order):
                self.explorers[order.explorer].lane.append(order)
            case Write(record=ModelVersion() as version):
                self._announced(version)
            case Write(record=BatchRecord() as batch):
                self.clients.noticed(batch)
            case _:
                pass

    def _announced(self, version: ModelVersion) -> None:
        for member in version.members:
            explorer = self.explorers[member.explorer]
            missed = not self.healed and self.rng.random() < 0.1
            if explorer.alive and explorer.incarnation == member.incarnation and not missed:
                explorer.to_sync.append(version)

    def new_task(self) -> None:
        task = self.clients.task()
        partition = f"tasks-{self.rng.randrange(TASK_PARTITIONS)}"
        origin = Origin(int(partition[-1]), len(self.log.partitions[partition]))
        self.log.send(partition, TaskArrived(task, origin, f"trace-of-{task.task_id}"))

    def command(self, kind: Literal["submit", "finalize", "abort", "cancel", "resend"]) -> None:
        request = getattr(self.clients, kind)()
        if request is not None:
            self.send_command(request)

    def contribute(self) -> None:
        """A client contributes what it has drawn with some version, new or old; now and then it is not what it says."""
        self._offsets += 1
        version = max(-1, self.trainer.step + self.rng.choice([0, 0, 0, -1, -2, 3]))
        command = self.clients.contribute(self._offsets, version)
        runs = sum(piece.samples for piece in command.pieces)
        found: Finding = Examined(attempt=1, workflow="math", runs=[{"reward": self.rng.random()}] * runs)
        if self.rng.random() < 0.1:
            found = Uncountable("wrong_record", "made up")
        truth = Produced(tuple(command.pieces), tuple(range(runs)), version)
        self.invariants.contributions[command.client, command.command_id] = truth
        self._found[command.command_id] = found
        self.send_command(command)

    def send_command(self, request: Request) -> None:
        if isinstance(request, Contribute):
            self.log.send("commands", ContributionArrived(request, self._found[request.command_id]))
        else:
            self.log.send("commands", CommandArrived(request, operator=True))

    def send(self, sender: str, event: Event) -> None:
        self._heard.append((sender, event))
        self.log.send(f"events-{sender}", EventArrived(event))

    def send_again(self) -> None:
        if self._heard:
            sender, event = self.rng.choice(self._heard)
            self.log.send(f"events-{sender}", EventArrived(event))

    def explorer_starts(self) -> None:
        explorer = self.rng.choice(list(self.explorers.values()))
        if not explorer.alive:
            explorer.start()
            self.send(explorer.name, explorer.beat())

    def explorer_dies(self, *, politely: bool = False) -> None:
        explorer = self.rng.choice(list(self.explorers.values()))
        if explorer.alive:
            if politely:
                self.send(explorer.name, ExplorerLeft(explorer=explorer.name, incarnation=explorer.incarnation))
            explorer.alive = False

    def explorer_changes_state(self) -> None:
        explorer = self.rng.choice(list(self.explorers.values()))
        explorer.state = self.rng.choice(["ready", "ready", "syncing", "draining"])

    def beats(self) -> None:
        for explorer in self.explorers.values():
            if explorer.alive:
                self.send(explorer.name, explorer.beat())
        if self.trainer.incarnations:
            self.send("trainer", self.trainer.beat())

    def order_is_read(self) -> None:
        busy = [explorer for explorer in self.explorers.values() if explorer.alive and explorer.lane]
        if busy:
            self.rng.choice(busy).handle(self.rng)

    def rollout_ends(self, status: Status | None = None) -> None:
        busy = [explorer for explorer in self.explorers.values() if explorer.alive and explorer.running]
        if not busy:
            return
        explorer = self.rng.choice(busy)
        name = self.rng.choice(list(explorer.running))
        status = status or self.rng.choices(["completed", "partial", "failed"], [16, 2, 3])[0]  # type: ignore[assignment]
        assert status is not None
        self._offsets += 1
        event, produced = explorer.finish(name, status, self.rng, self._offsets)
        if produced is not None:
            self.invariants.produced[name] = produced
        self.send(explorer.name, event)

    def weights_arrive(self, *, ok: bool | None = None) -> None:
        syncing = [explorer for explorer in self.explorers.values() if explorer.alive and explorer.to_sync]
        if not syncing:
            return
        explorer = self.rng.choice(syncing)
        version = explorer.to_sync.popleft()
        ok = self.rng.random() < 0.8 if ok is None else ok
        if ok:
            explorer.serve(version.version)
        self.send(explorer.name, explorer.synced(version, ok=ok))

    def trainer_starts(self) -> None:
        self.trainer.incarnations += 1
        self.trainer.step = max(0, self.trainer.step - self.rng.choice([0, 0, 1, 2]))
        self.send("trainer", self.trainer.publication())

    def train(self) -> None:
        if self.trainer.incarnations and self.trainer.step < len(self.invariants.trained):
            self.trainer.step += 1
            self.send("trainer", self.trainer.publication())

    def time_passes(self, seconds: float, *, dies: Death = None) -> None:
        self.now += seconds
        self._shadow = None
        self.transaction(tick=True, dies=dies, most=self.rng.choice((0, 0, 1, 5)))

    def heal(self) -> None:
        """Nothing goes wrong any more: everything must end, in a bounded time."""
        self.healed = True
        for explorer in self.explorers.values():
            if not explorer.alive:
                explorer.start()
            explorer.state = "ready"
        if not self.trainer.incarnations:
            self.trainer_starts()
        rounds = self._settle(lambda: not self._at_work() | self._unanswered())
        stuck = sorted(self._at_work() | self._unanswered())
        hold(not stuck, Invariant.LIVENESS, f"after {rounds} rounds without faults: {stuck}")
        # What is left waits for tasks that never come; its clients give it up.
        for batch_id, batch in list(self.invariants.batches.items()):
            if batch.state not in (BatchLifecycleState.FINALIZED, BatchLifecycleState.ABORTED):
                self.send_command(self.clients.abort(batch_id))
        self._settle(lambda: not self._left_over())
        left = sorted(self._left_over())
        hold(not left, Invariant.LIVENESS, f"after all unfilled batches are given up: {left}")
        versions = {explorer.version for explorer in self._followers()}
        detail = f"explorers serve {versions}, not {self.trainer.step}"
        hold(versions == {self.trainer.step}, Invariant.LIVENESS, detail)
        for _ in range(2):
            size = size_of(self.process.machine)
            hold(size <= EMPTY_HOUSE, Invariant.MEMORY, f"with nothing to do the machine holds {size} items")
            self.restart()

    def check_size(self) -> None:
        size = size_of(self.process.machine)
        batches = self.invariants.open_batches()
        tasks = len(self.invariants.without_result()) + sum(
            len(self.invariants.results_of[batch_id]) for batch_id in batches
        )
        bound = EMPTY_HOUSE + ITEMS_PER_BATCH * len(batches) + ITEMS_PER_TASK * tasks
        kept = f"{size} items for {tasks} tasks in {len(batches)} batches"
        hold(size <= bound, Invariant.MEMORY, kept)

    def _settle(self, done: Callable[[], bool]) -> int:
        """Lets everything go its way until it is done, for so many rounds at most. Returns their number."""
        tasks = sum(len(records) for name, records in self.log.partitions.items() if name.startswith("tasks"))
        unread = tasks - sum(at for name, at in self.log.positions.items() if name.startswith("tasks"))
        rounds = ROUNDS + ROUNDS_PER_BATCH * (len(self.invariants.open_batches()) + unread)
        for _ in range(rounds):
            self.beats()
            while self._waiting():
                self.transaction(most=20)
            for explorer in self.explorers.values():
                while explorer.lane:
                    explorer.handle(self.rng)
            while any(explorer.to_sync for explorer in self.explorers.values()):
                self.weights_arrive(ok=True)
            while any(explorer.running for explorer in self.explorers.values()):
                self.rollout_ends("completed")
            self.train()
            self.time_passes(1.0)
            quiet = not self.log.unread(self.log.positions) and self.trainer.step == len(self.invariants.trained)
            served = all(explorer.version == self.trainer.step for explorer in self._followers())
            if quiet and served and done():
                break
        return rounds

    def _followers(self) -> list[Explorer]:
        return [explorer for explorer in self.explorers.values() if not explorer.fixed]

    def _at_work(self) -> set[str]:
        members: dict[str, set[str]] = defaultdict(set)
        for task_id in self.invariants.without_result():
            task = self.invariants.accepted[task_id]
            batch_id = task.batch_id or f"{task.batch_type}-"
            members[f"{task.batch_type}-" if AUTOMATIC.fullmatch(batch_id) else batch_id].add(task_id)
        working = set()
        for batch_type in ("train", "eval"):
            if len(members[f"{batch_type}-"]) >= self.settings.batch_size:
                working |= members[f"{batch_type}-"]
        for batch in self.invariants.batches.values():
            expected, tasks = batch.expected_task_count, members[batch.batch_id]
            if batch.state in (BatchLifecycleState.RUNNING, BatchLifecycleState.FINALIZING):
                working |= tasks if expected is None else {batch.batch_id}
            elif batch.state is BatchLifecycleState.PENDING and expected == len(tasks) > 0:
                working.add(batch.batch_id)
        return working

    def _left_over(self) -> set[str]:
        return self._at_work() | self.invariants.without_result() | self._unanswered()

    def _unanswered(self) -> set[str]:
        return {f"{client} {command}" for client, command in self.invariants.without_reply()}
