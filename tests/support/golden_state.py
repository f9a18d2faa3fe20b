"""Writes ``golden_state/level-<n>-<name>.msgpack``: the changelog of a coordinator in the middle of everything.

Each file holds the settings, the entries, what the coordinator was told afterwards, and the batches that it then
FINALIZED. The files are history: run this to add those of a new level, never to make a failing test pass.
"""

from pathlib import Path
from typing import Any

import msgpack

from benchmarks._records import completed, synced
from schemas import (
    BatchLifecycleState,
    BatchRecord,
    Dispatch,
    ExplorerHeartbeat,
    ModelVersion,
    Position,
    PublishVersion,
    RolloutFinished,
    StepTrained,
    SubmitBatch,
    Task,
)
from schemas.codec import decode, encode
from tests.support.fakes.mesh_records import dispatch, explorer_beat
from tests.support.simulation import random_history
from trinity_bus.config import CoordinatorSettings, SynchronizerSettings
from trinity_bus.coordination import (
    CommandArrived,
    CoordinatorMachine,
    Effect,
    EventArrived,
    Input,
    Origin,
    TaskArrived,
    Tick,
    Write,
)
from trinity_bus.coordination.dispatch.explorer import Explorer

GOLDEN = Path(__file__).with_suffix("")
FILES = sorted(GOLDEN.glob("*.msgpack"))
HISTORIES = {"choosing": 60, "holding": 54}
"""Seeds of the histories, others for each level: together they hold entries of every kind, and batches that end."""
EVENTS = 1500
ROUNDS = 400
STEP_S = 0.5


def load(path: Path) -> dict[str, Any]:
    """A file, unpacked."""
    golden: dict[str, Any] = msgpack.unpackb(path.read_bytes())
    return golden


def machine_of(settings: dict[str, Any], entries: dict[str, bytes]) -> CoordinatorMachine:
    machine = CoordinatorMachine(CoordinatorSettings(**settings), SynchronizerSettings(sync_timeout_s=20))
    machine.restore(entries.items())
    return machine


class Rest:
    """What happens after the state was written: everything goes well, and what can be finished is."""

    def __init__(self, machine: CoordinatorMachine) -> None:
        self._machine = machine
        self._now = 0.0
        self._offset = 1_000_000
        self.told: list[tuple[float, str, bytes]] = []  # inputs: when, of which kind, and the record
        self.finalized: list[bytes] = []

    def run(self) -> None:
        """Until nothing happens any more, or for long enough."""
        fleet = [e for e in self._machine.fleet.explorers.values() if not e.gone]
        running = list(self._machine.ledger.running.values())
        inbox: list[Any] = [_beat(explorer) for explorer in fleet]
        inbox += [self._finished(a.explorer, a.incarnation, a.task_id, a.number, a.part) for a in running]
        for _ in range(ROUNDS):
            self._now += STEP_S
            commands = self._tell(Tick())
            for record in inbox:
                commands += self._tell(EventArrived(record))
            inbox = self._answers(commands)
            release = self._machine.sync.state.held or self._machine.sync.state.release
            if release is not None and self._machine.ledger.counters.finalized > release.version:
                step = release.version + 1
                inbox.append(release.model_copy(update={"step": step, "version": step, "checksum": f"{step:04}"}))

    def _tell(self, given: Input) -> list[Effect]:
        record = b"" if isinstance(given, Tick) else encode(given.event)  # type: ignore[union-attr]
        self.told.append((self._now, type(given).__name__, record))
        return self._machine.handle(given, self._now)

    def _answers(self, commands: list[Effect]) -> list[Any]:
        answers: list[Any] = []
        for command in commands:
            match command:
                case Write(record=Dispatch() as order):
                    answers.append(self._finished_order(order))
                case Write(record=ModelVersion() as version):
                    answers += [synced(version, member.explorer, member.incarnation) for member in version.members]
                case Write(record=BatchRecord() as batch) if batch.state is BatchLifecycleState.FINALIZED:
                    self.finalized.append(encode(batch))
        return answers

    def _finished_order(self, order: Dispatch) -> RolloutFinished:
        machine = self._machine
        index = machine.ledger.running[order.task.task_id, order.attempt].part
        return self._finished(order.explorer, order.incarnation, order.task.task_id, order.attempt, index)

    def _finished(self, explorer: str, incarnation: str, task_id: str, number: int, index: int) -> RolloutFinished:
        task = self._machine.ledger.tasks[task_id]
        batch = self._machine.ledger.batches[task.batch_id]
        runs = task.parts[index].runs
        self._offset += 1
        order = dispatch(
            task_id,
            explorer=explorer,
            incarnation=incarnation,
            attempt=number,
            batch_id=batch.batch_id,
            batch_type=batch.batch_type,
            repeat_times=runs,
        )
        return completed(
            order,
            version=max(0, self._machine.fleet.explorers[explorer].version),
            seconds=1.5,
            batch_type=batch.batch_type,
            metrics=[{"reward": float(run)} for run in range(runs)],
            experience=Position(partition=1, offset=self._offset) if batch.batch_type == "train" else None,
        )


def with_records(body: Any) -> Any:
    """The same with the records in it decoded: their own codec writes fields that they have got since."""
    if isinstance(body, dict):
        return {key: with_records(value) for key, value in body.items()}
    return decode(body, StepTrained) if isinstance(body, bytes) else body


def _beat(explorer: Explorer) -> ExplorerHeartbeat:
    return explorer_beat(
        explorer.name,
        incarnation=explorer.incarnation,
        slots=4,
        model_version=explorer.version,
        workflows=["math", "rare"],
        pool=explorer.pool or None,
        follows="none" if explorer.fixed else "trainer",
    )


def state(seed: int, events: int, *, choosing: bool) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Settings and entries of a coordinator that has seen much, and is in the middle of it."""
    world = random_history(seed, events)
    settings = world.settings.model_dump(mode="json")
    machine = machine_of(settings, world.log.changelog)
    machine.changes()
    machine.handle(CommandArrived(SubmitBatch(client="c", command_id="open", batch_id="an-open-one")), 0.0)
    for number in range(3):
        task = Task(task_id=f"open-{number}", workflow="math", prompt="1 + 1", batch_id="an-open-one")
        machine.handle(TaskArrived(task, Origin(0, 10_000 + number), "trace"), 0.0)
    if choosing:
        older = max(0, machine.sync.version - 1)
        choice = PublishVersion(client="c", command_id="v", model="policy", version=older)
        machine.handle(CommandArrived(choice), 0.0)
    return settings, machine.entries()


def main() -> None:
    for name, seed in HISTORIES.items():
        settings, entries = state(seed, EVENTS, choosing=name == "choosing")
        machine = machine_of(settings, entries)
        path = GOLDEN / f"level-{machine.level}-{name}.msgpack"
        if path.exists():
            continue
        rest = Rest(machine)
        rest.run()
        kept = {"settings": settings, "entries": entries, "told": rest.told, "finalized": rest.finalized}
        path.write_bytes(msgpack.packb(kept))


if __name__ == "__main__":
    main()
