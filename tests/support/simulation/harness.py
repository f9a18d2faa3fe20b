"""A coordinator's machine with a clock and short names for what happens, for tests of one scenario each."""

from typing import Any, Literal, Self

from benchmarks._records import step_trained
from schemas import (
    AbortBatch,
    BatchRecord,
    Cancel,
    CancelTasks,
    CommandReply,
    Contribute,
    Dispatch,
    ExperiencePiece,
    FinalizeBatch,
    ModelVersion,
    Position,
    RolloutFinished,
    SkipBatch,
    SubmitBatch,
    Task,
    TaskResult,
)
from tests.support.effects import written
from tests.support.fakes.mesh_records import explorer_beat, weights_synced
from trinity_bus.config import CoordinatorSettings, SynchronizerSettings
from trinity_bus.coordination import (
    CommandArrived,
    ContributionArrived,
    CoordinatorMachine,
    Effect,
    EventArrived,
    Examined,
    Fact,
    Finding,
    Observe,
    Origin,
    RejectTask,
    Request,
    TaskArrived,
    Tick,
)
from trinity_bus.coordination.inputs import Event

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Harness:
    """A machine, a clock, and short names for what happens; ``store`` is the changelog."""

    def __init__(self, **settings: Any) -> None:
        defaults = {"batch_size": 2, "explorer_timeout_s": 10, "max_attempts": 2}
        own = {name: settings.pop(name) for name in list(settings) if name in SynchronizerSettings.model_fields}
        self.synchronizer = SynchronizerSettings(**{"sync_timeout_s": 20, **own})
        self.settings = CoordinatorSettings(**{**defaults, **settings})
        self.machine = CoordinatorMachine(self.settings, self.synchronizer)
        self.store: dict[str, bytes | None] = {}
        self.now = 0.0
        self.sent = 0

    def _handle(self, given: Any) -> list[Effect]:
        effects = self.machine.handle(given, self.now)
        self.store.update(self.machine.changes())
        return effects

    def task(self, task_id: str, **fields: Any) -> list[Effect]:
        return self._handle(self.arrived(task_id, **fields))

    def arrived(self, task_id: str, **fields: Any) -> TaskArrived:
        self.sent += 1
        task = Task(**{"task_id": task_id, "workflow": "math", "prompt": "1", **fields})
        return TaskArrived(task, Origin(0, self.sent), TRACE)

    def event(self, event: Event, traceparent: str | None = None) -> list[Effect]:
        return self._handle(EventArrived(event, traceparent))

    def beat(self, name: str = "e0", incarnation: str = "1", **fields: Any) -> list[Effect]:
        values = {"state": "ready", "slots": 4, "model_version": 0, "workflows": ["math"], **fields}
        return self.event(explorer_beat(name, incarnation=incarnation, **values))

    def begun(self, *tasks: str, **explorer: Any) -> Self:
        """The same, once an explorer is there and has been followed by these tasks."""
        self.beat(**explorer)
        for task_id in tasks:
            self.task(task_id)
        return self

    def finished(
        self, task_id: str, *, name: str = "e0", incarnation: str = "1", attempt: int = 1, **fields: Any
    ) -> Any:
        values = {
            "batch_id": "train-000001",
            "batch_type": "train",
            "status": "completed",
            "completed_runs": 2,
            "total_runs": 2,
            "samples": 2,
            "experience": Position(partition=0, offset=self.sent),
            "version_min": 0,
            "version_max": 0,
            "metrics": [{"reward": 0.0}, {"reward": 1.0}],
            "seconds": 3.0,
            **fields,
        }
        return self.event(
            RolloutFinished(explorer=name, incarnation=incarnation, task_id=task_id, attempt=attempt, **values), TRACE
        )

    def trained(self, version: int, incarnation: str = "t1", **fields: Any) -> list[Effect]:
        values = {"trainer": "trainer", "checksum": f"sum-{version}", **fields}
        return self.event(step_trained(version, incarnation, **values))

    def synced(self, version: int, epoch: int, name: str = "e0", *, ok: bool = True, **fields: Any) -> list[Effect]:
        values = {"checksum": f"sum-{version}" if ok else "", **fields}
        return self.event(weights_synced(name, version, incarnation="1", epoch=epoch, ok=ok, **values))

    def command(self, command: Request, *, operator: bool = True) -> list[Effect]:
        assert not isinstance(command, Contribute)
        return self._handle(CommandArrived(command, TRACE, operator))

    def contribute(self, task_id: str, found: Finding | None = None, **fields: Any) -> list[Effect]:
        """Somebody contributes experiences; that they are what they seem unless ``found`` says otherwise."""
        self.sent += 1
        piece = ExperiencePiece(samples=2, position=Position(partition=1, offset=self.sent))
        values = {"client": "c", "command_id": f"c-{self.sent}", "version_min": 0, "version_max": 0, **fields}
        command = Contribute(task_id=task_id, pieces=values.pop("pieces", [piece]), **values)
        examined = Examined(attempt=1, workflow="math", runs=[{"reward": 1.0}, {"reward": 0.5}])
        return self._handle(ContributionArrived(command, found or examined, TRACE))

    def _ask(self, kind: type[Any], batch_id: str, what: str, **fields: Any) -> list[Effect]:
        values = {"client": "client-1", "command_id": f"{what}-{batch_id}", "batch_id": batch_id, **fields}
        return self.command(kind(**values))

    def submit(self, batch_id: str, expected: int | None = 2, **fields: Any) -> list[Effect]:
        return self._ask(SubmitBatch, batch_id, "submit", expected_task_count=expected, **fields)

    def finalize(self, batch_id: str, timeout_s: float | None = None, **fields: Any) -> list[Effect]:
        return self._ask(FinalizeBatch, batch_id, "finalize", timeout_s=timeout_s, **fields)

    def abort(self, batch_id: str, **fields: Any) -> list[Effect]:
        return self._ask(AbortBatch, batch_id, "abort", **{"reason": "not needed", **fields})

    def cancel(self, batch_id: str, **fields: Any) -> list[Effect]:
        return self._ask(CancelTasks, batch_id, "cancel", **{"reason": "too slow", **fields})

    def skip(self, batch_id: str, **fields: Any) -> list[Effect]:
        return self._ask(SkipBatch, batch_id, "skip", **{"reason": "poison", **fields})

    @staticmethod
    def request(kind: Literal["abort", "cancel"], batch_id: str, *, number: int = 1, **fields: Any) -> Request:
        make = {"abort": AbortBatch, "cancel": CancelTasks}[kind]
        values = {"client": "client-1", "command_id": f"{kind}-{batch_id}-{number}", "reason": "not needed", **fields}
        return make(batch_id=batch_id, **values)

    def wait(self, seconds: float) -> list[Effect]:
        """Time passes in steps of a second, and the clock ticks; nobody says anything."""
        effects = []
        for _ in range(int(seconds)):
            self.now += 1
            effects += self._handle(Tick())
        return effects

    def restart(self) -> None:
        self.machine = CoordinatorMachine(self.settings, self.synchronizer)
        self.machine.restore(self.store.items())


def dispatches(effects: list[Effect]) -> list[Dispatch]:
    return written(effects, Dispatch)


def cancels(effects: list[Effect]) -> list[Cancel]:
    return written(effects, Cancel)


def batches(effects: list[Effect]) -> list[BatchRecord]:
    return written(effects, BatchRecord)


def announced(effects: list[Effect]) -> list[ModelVersion]:
    return written(effects, ModelVersion)


def groups(effects: list[Effect]) -> list[tuple[int, int, list[str]]]:
    """Version, epoch and members of each announcement."""
    return [(v.version, v.epoch, [m.explorer for m in v.members]) for v in announced(effects)]


def refusals(effects: list[Effect]) -> list[str]:
    return [c.refusal.value for c in effects if isinstance(c, RejectTask)]


def facts(effects: list[Effect]) -> list[Fact]:
    return [c.fact for c in effects if isinstance(c, Observe)]


def answers(effects: list[Effect]) -> list[TaskResult]:
    return written(effects, TaskResult)


def statuses(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(result.task_id, result.status) for result in answers(effects)]


def replies(effects: list[Effect]) -> list[CommandReply]:
    return written(effects, CommandReply)


def errors(effects: list[Effect]) -> list[str | None]:
    return [reply.error for reply in replies(effects)]
