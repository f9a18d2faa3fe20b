"""SIMULATED explorers and a trainer: they say what real ones say, late or never, and work by the toss of a coin."""

import random
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from benchmarks._records import step_trained, synced, trainer_beat
from schemas import (
    Cancel,
    Dispatch,
    ExperiencePiece,
    ExplorerHeartbeat,
    ModelVersion,
    Position,
    RolloutFinished,
    RunningAttempt,
    StepTrained,
    TrainerHeartbeat,
    WeightsSynced,
)
from schemas.event import ExplorerState
from tests.support.fakes.mesh_records import explorer_beat
from tests.support.simulation.invariant import AttemptName, Produced
from tests.support.simulation.invariants import runs_of

HANGING = 0.02
IN_PIECES = 4  # one in so many groups of several samples is too large for a record

type Status = Literal["completed", "partial", "failed"]


def stored(rng: random.Random, samples: int, offset: int) -> list[ExperiencePiece]:
    cuts = rng.randrange(1, samples) if samples > 1 and not rng.randrange(IN_PIECES) else 0
    ends = [*sorted(rng.sample(range(1, samples), cuts)), samples] if samples else []
    return [
        ExperiencePiece(samples=end - begin, position=Position(partition=number, offset=offset))
        for number, (begin, end) in enumerate(pairwise([0, *ends]))
    ]


@dataclass(slots=True)
class Running:
    dispatch: Dispatch
    version_min: int


@dataclass(slots=True)
class Explorer:
    """One name, one incarnation of it at a time."""

    name: str
    slots: int
    workflows: list[str]
    pool: str | None = None
    fixed: bool = False  # whether it serves one checkpoint, of which nobody knows a version
    incarnations: int = 0
    alive: bool = False
    state: ExplorerState = "ready"
    version: int = -1
    lane: deque[Dispatch | Cancel] = field(default_factory=deque)
    waiting: dict[AttemptName, Dispatch] = field(default_factory=dict)  # attempts that wait for their version
    running: dict[AttemptName, Running] = field(default_factory=dict)
    to_sync: deque[ModelVersion] = field(default_factory=deque)

    @property
    def incarnation(self) -> str:
        return f"{self.name}-life-{self.incarnations}"

    def start(self) -> None:
        self.incarnations += 1
        self.alive, self.state, self.version = True, "ready", -1
        self.waiting.clear()
        self.running.clear()
        self.to_sync.clear()

    def handle(self, rng: random.Random) -> None:
        order = self.lane.popleft()
        if order.incarnation != self.incarnation:
            return
        if isinstance(order, Dispatch):
            # Now and then a workflow hangs: nobody ever hears of the attempt again.
            if rng.random() > HANGING:
                self.waiting[order.task.task_id, order.attempt] = order
                self.begin()
        elif rng.random() < 0.8:
            self.waiting.pop((order.task_id, order.attempt), None)
            self.running.pop((order.task_id, order.attempt), None)

    def begin(self) -> None:
        for name, order in list(self.waiting.items()):
            if self.version >= order.min_version or (self.fixed and order.min_version == 0):
                del self.waiting[name]
                self.running[name] = Running(order, self.version)

    def serve(self, version: int) -> None:
        """Another version draws from now on, tokens of attempts under way too."""
        self.version = version
        for attempt in self.running.values():
            attempt.version_min = min(attempt.version_min, version)
        self.begin()

    def beat(self) -> ExplorerHeartbeat:
        return explorer_beat(
            self.name,
            incarnation=self.incarnation,
            state=self.state,
            slots=self.slots,
            running=[RunningAttempt(task_id=task_id, attempt=attempt) for task_id, attempt in self.running],
            model_version=self.version,
            workflows=self.workflows,
            pool=self.pool,
            follows="none" if self.fixed else "trainer",
        )

    def finish(
        self, name: AttemptName, status: Status, rng: random.Random, offset: int
    ) -> tuple[RolloutFinished, Produced | None]:
        attempt = self.running.pop(name)
        order = attempt.dispatch
        if status == "partial" and order.repeat_times == 1:
            status = "completed"
        done = {"completed": order.repeat_times, "failed": 0}.get(status)
        if done is None:
            done = rng.randrange(1, order.repeat_times)
        # Which ones is drawn beside the history, which is then the same whether they are kept or not.
        beside = random.Random(offset)  # noqa: S311 - histories, not secrets
        runs = sorted(beside.sample(runs_of(order), done))
        kept = done if order.batch_type == "train" else 0
        pieces = stored(beside, kept, offset)
        event = RolloutFinished(
            explorer=self.name,
            incarnation=self.incarnation,
            task_id=name[0],
            attempt=name[1],
            batch_id=order.batch_id,
            batch_type=order.batch_type,
            status=status,
            completed_runs=done,
            total_runs=order.repeat_times,
            metrics=[{"reward": rng.random()} for _ in range(done)],
            experience=pieces[0].position if len(pieces) == 1 else None,
            pieces=pieces if len(pieces) > 1 else [],
            samples=kept,
            version_min=attempt.version_min if done else -1,
            version_max=self.version if done else -1,
            seconds=rng.lognormvariate(0, 1),
            response_tokens=int(done * beside.lognormvariate(5, 1)),
            error=None if status == "completed" else "ValueError: made up",
            # Some do not say it: then all runs are made again.
            runs=runs if status == "partial" and offset % 5 else [],
        )
        if not done:
            return event, None
        return event, Produced(tuple(pieces), tuple(runs), attempt.version_min, fixed=self.fixed)

    def synced(self, version: ModelVersion, *, ok: bool) -> WeightsSynced:
        answer = synced(version, self.name, self.incarnation)
        failed = {"ok": False, "checksum": "", "error": "ConnectionError: made up"}
        return answer if ok else answer.model_copy(update=failed)


@dataclass(slots=True)
class Trainer:
    incarnations: int = 0
    step: int = 0

    @property
    def incarnation(self) -> str:
        return f"trainer-life-{self.incarnations}"

    def publication(self) -> StepTrained:
        return step_trained(self.step, self.incarnation, trainer="trainer", checksum=f"sum-of-{self.step}")

    def beat(self) -> TrainerHeartbeat:
        return trainer_beat(self.step, self.incarnation, trainer="trainer")
