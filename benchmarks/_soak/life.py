"""What happens in a mesh of days besides rollouts, in simulated time: members, clients and trainers come and go.

=================================  =====================================================================================
each minute                        an explorer is killed and starts anew under its name; another leaves for good, or
                                   dies without a word, and one of a new name comes
every quarter of an hour           the trainer starts anew
every five seconds                 a client of a new name submits a batch, sends its tasks and waits for its end. One in
                                   three lacks a task: when its client's time runs out, it is ended, or aborted by its
                                   client; one in six is aborted amid
every ten seconds                  a client contributes experiences, which cover two other ids
of a hundred tasks                 one fails at first, and is tried again; one is sent twice
=================================  =====================================================================================
"""

from collections.abc import Callable
from typing import Final

from benchmarks._fleet.coordinator import Sent
from benchmarks._fleet.mesh import SimulatedExplorer, SimulatedMesh
from benchmarks._records import step_trained, trainer_beat
from benchmarks._soak.kept_topics import KeptTopics
from schemas import (
    AbortBatch,
    CommandReply,
    Contribute,
    ExperiencePiece,
    ExplorerLeft,
    FinalizeBatch,
    Position,
    RolloutFinished,
    SubmitBatch,
    Task,
)
from schemas.topics import COMMANDS, EXPLORER_EVENTS, TASKS, TRAINER_EVENTS

TOGETHER_S: Final = 0.2
"""Attempts that end within it are told of together: what is decided upon together costs less, so time passes sooner."""
CLIENT_EVERY_S: Final = 5.0
CONTRIBUTION_EVERY_S: Final = 10.0
TRAINER_BEATS_EVERY_S: Final = 1.0
TRAINER_EVERY: Final = 15
"""Minutes."""
CLIENT_BATCH: Final = 8
LACKING_EVERY: Final = 3
ABORTED_EVERY: Final = 6
PATIENCE_S: Final = 20.0
TWICE_EVERY: Final = 100
"""Tasks."""
FAILS: Final = "50"
"""How the names of tasks end that fail at first."""


class LivedInMesh(SimulatedMesh):
    def __init__(self, explorers: int, slots: int, seed: int) -> None:
        super().__init__(explorers, slots, seed, clock=lambda: 0.0)
        self.kept = KeptTopics()
        self._checkpoint = 0
        """The end of ``batches`` when the trainer's oldest checkpoint was made."""
        self._members = explorers
        self._trainers = self._clients = self._contributed = self._commands = self._minutes = 0

    def begin(self) -> None:
        self.join(1.0)
        self.publish()
        self.trains = True
        self.fill()
        self._every(CLIENT_EVERY_S, self._client_comes)
        self._every(CONTRIBUTION_EVERY_S, self._contribute)
        self._every(TRAINER_BEATS_EVERY_S, self._trainer_beats)

    def minute(self, rate: float, seconds: float) -> None:
        end = self.kept.end
        self.work(rate, seconds, TOGETHER_S)
        self._minutes += 1
        self.kept.look(self.coordinator, self._checkpoint, self.answered)
        self._checkpoint = end
        names = sorted(self.explorers)
        self.start_anew(names[self._minutes % len(names)])
        self._change_member(names[0])
        if self._minutes % TRAINER_EVERY == 0:
            self._trainers += 1
            self.trainer = f"trainer-life-{self._trainers}"
            self._write(self.now, TRAINER_EVENTS, b"trainer-0", step_trained(self.version, self.trainer))
        # Those that explorers have taken along too often are answered without one that ends.
        for _ in range(self.wanted - len(self.coordinator.machine.ledger.tasks)):
            self.send(self.now)

    def send(self, now: float) -> None:
        super().send(now)
        if self.sent % TWICE_EVERY == 0:
            name = f"task-{self.sent:08d}"
            self._write(now, TASKS, name.encode(), Task(task_id=name, workflow="workflow-0", prompt="Once more"))

    def _heard(self, now: float, sent: Sent) -> None:
        self.kept.written(sent)
        match sent[2]:
            case CommandReply(error="timeout", client=name):
                self._write(now, COMMANDS, name.encode(), self._abort(name))
            case _:
                super()._heard(now, sent)

    # -- members -----------------------------------------------------------------------------------------------------

    def _change_member(self, name: str) -> None:
        gone = self.explorers.pop(name)
        gone.alive = False
        if self._members % 2:
            left = ExplorerLeft(explorer=name, incarnation=gone.incarnation, reason="scaled down")
            self._write(self.now, EXPLORER_EVENTS, gone.key, left)
        name = f"explorer-{self._members:05d}"
        self._members += 1
        come = self.explorers[name] = SimulatedExplorer(name, gone.slots, name.encode(), incarnation=f"first-{name}")
        self._at(self.now, self._beating(come))

    def _trainer_beats(self, now: float) -> None:
        beat = trainer_beat(self.version, self.trainer, state="training", needs_from=self._checkpoint)
        self._write(now, TRAINER_EVENTS, b"trainer-0", beat)

    def _end_one(self, explorer: SimulatedExplorer, now: float) -> None:
        if not explorer.running:
            return
        (task_id, attempt), order = next(iter(explorer.running.items()))
        if attempt == 1 and task_id.endswith(FAILS):
            del explorer.running[task_id, attempt]
            explorer.beat = None
            failed = RolloutFinished(
                explorer=explorer.name,
                incarnation=explorer.incarnation,
                task_id=task_id,
                attempt=attempt,
                batch_id=order.batch_id,
                batch_type=order.batch_type,
                status="failed",
                completed_runs=0,
                total_runs=order.repeat_times,
                seconds=1.0,
                error="ValueError: made up",
            )
            self._write(now, EXPLORER_EVENTS, explorer.key, failed)
            return
        super()._end_one(explorer, now)

    # -- clients -----------------------------------------------------------------------------------------------------

    def _client_comes(self, now: float) -> None:
        self._clients += 1
        name = f"client-{self._clients:06d}"
        submit = SubmitBatch(
            client=name,
            command_id=self._command_id(),
            batch_id=name,
            batch_type="eval" if self._clients % 2 else "train",
            expected_task_count=CLIENT_BATCH,
        )
        self._write(now, COMMANDS, name.encode(), submit)
        self._at(now + 1.0, lambda at: self._client_goes_on(name, submit, at))

    def _client_goes_on(self, name: str, submitted: SubmitBatch, now: float) -> None:
        lacks = self._clients % LACKING_EVERY == 0
        for number in range(CLIENT_BATCH - lacks):
            task = Task(
                task_id=f"{name}-{number}",
                workflow="workflow-1",
                prompt="What is 3 + 4?",
                batch_id=name,
                batch_type=submitted.batch_type,
                producer=name,
            )
            self._write(now, TASKS, task.task_id.encode(), task)
        wait = FinalizeBatch(
            client=name,
            command_id=self._command_id(),
            batch_id=name,
            batch_type=submitted.batch_type,
            timeout_s=PATIENCE_S,
        )
        self._write(now, COMMANDS, name.encode(), wait)
        if self._clients % ABORTED_EVERY == 1:
            self._at(now + 1.0, lambda at: self._write(at, COMMANDS, name.encode(), self._abort(name)))

    def _abort(self, name: str) -> AbortBatch:
        return AbortBatch(client=name, command_id=self._command_id(), batch_id=name, reason="changed its mind")

    def _contribute(self, now: float) -> None:
        self._contributed += 1
        name = f"made-{self._contributed:06d}"
        command = Contribute(
            client="gateway",
            command_id=self._command_id(),
            task_id=name,
            pieces=[ExperiencePiece(samples=2, position=Position(partition=0, offset=self.answered))],
            version_min=max(0, self.version),
            version_max=max(0, self.version),
            covers=[f"{name}-a", f"{name}-b"],
        )
        self._write(now, COMMANDS, name.encode(), command)

    def _command_id(self) -> str:
        self._commands += 1
        return f"command-{self._commands}"

    def _every(self, seconds: float, happens: Callable[[float], None]) -> None:
        def again(now: float) -> None:
            happens(now)
            self._at(now + seconds, again)

        self._at(self.now + seconds, again)
