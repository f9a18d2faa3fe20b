"""Inputs for the coordinator's machine: a mesh that goes on, and whose records are damaged on their way.

A small mesh is played: explorers that answer the orders that they were given, a trainer that trains what is finalized,
clients. Each record is encoded; some are damaged, as bytes; what can still be decoded goes to the machine. So damaged
answers are answers to real orders. What the machine decides is encoded too, as it would be for the log; now and then it
is replaced by one that was restored from its changes.
"""

import json
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgpack

from benchmarks._records import completed, step_trained, trainer_beat
from schemas import (
    BatchLifecycleState,
    BatchRecord,
    Cancel,
    Contribute,
    Dispatch,
    ExperiencePiece,
    ExplorerLeft,
    ModelVersion,
    Position,
    PublishVersion,
    Record,
    RunnersReport,
    RunningAttempt,
    Task,
    VersionRefused,
    WeightsSynced,
)
from schemas.codec import DecodeError, decode, encode
from schemas.topics import COMMANDS, COORDINATOR_INPUTS, OPERATOR_COMMANDS
from tests.support.fakes.mesh_records import explorer_beat
from tests.support.fuzz.damage import damaged
from tests.support.simulation.clients import Clients
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination import (
    CommandArrived,
    ContributionArrived,
    CoordinatorMachine,
    Effect,
    EventArrived,
    Examined,
    Input,
    Origin,
    TaskArrived,
    Tick,
    Write,
)

RESTORE_EVERY = 60
REWARDS = (0.0, 1.0, float("nan"), float("inf"), -float("inf"), 1e308)


@dataclass
class Step:
    """Something that the machine was given: at a time, a record as it lies on a topic; or a tick."""

    now: float
    value: bytes | None = None


def settings_of(seed: int) -> CoordinatorSettings:
    """Small limits, so that each of them is met often."""
    rng = random.Random(seed)  # noqa: S311 - histories, not secrets
    return CoordinatorSettings(
        batch_size=rng.choice([1, 2, 4]),
        group_size=rng.choice([1, 2, 4]),
        max_staleness=rng.choice([0, 1, 2]),
        max_inflight_batches=rng.choice([1, 2, 3]),
        over_rollout_ratio=rng.choice([0.0, 0.25, 0.5]),
        wait_after_min_s=rng.choice([2.0, 20.0]),
        return_partial_tasks=rng.random() < 0.5,
        max_repeat_times_per_runner=rng.choice([None, None, 2]),
        dynamic_timeout_ratio=rng.choice([None, 4.0]),
        dynamic_timeout_warmup_steps=2,
        straggler_factor=rng.choice([None, 1.5]),
        explorer_timeout_s=10,
        task_timeout_s=30,
        max_attempts=rng.choice([1, 2, 3]),
        dedup_window=300,
        max_open_tasks=rng.choice([20, 40]),
    )


def given(step: Step, offset: int) -> Input | None:
    """What the coordinator makes of it; None where it is refused before the machine."""
    if step.value is None:
        return Tick()
    types = {cls for topic in COORDINATOR_INPUTS for cls in topic.records}
    try:
        record: Record = decode(step.value, *types)
    except DecodeError:
        return None
    if isinstance(record, Task):
        return TaskArrived(record, Origin(0, offset))
    if isinstance(record, Contribute):
        return ContributionArrived(record, Examined(attempt=1, workflow="math", runs=[{"reward": 1.0}]))
    if isinstance(record, (*COMMANDS.records, *OPERATOR_COMMANDS.records)):
        by_operator = not isinstance(record, COMMANDS.records)
        return CommandArrived(record, operator=by_operator)  # type: ignore[arg-type]  # one of these
    return None if isinstance(record, RunnersReport) else EventArrived(record)  # type: ignore[arg-type]  # likewise


def written(commands: list[Effect]) -> None:
    """Encodes whatever is to be written, as the coordinator does. EncodeError: a reader would refuse it."""
    for command in commands:
        if isinstance(command, Write):
            encode(command.record)


class Machine:
    """The machine under test, with its changelog."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._machine = CoordinatorMachine(settings)
        self._entries: dict[str, bytes] = {}
        self._steps = 0

    def take(self, step: Step) -> list[Effect]:
        self._steps += 1
        one = given(step, self._steps)
        if one is None:
            return []
        commands = self._machine.handle(one, step.now)
        written(commands)
        for key, value in self._machine.changes():
            if value is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = value
        if self._steps % RESTORE_EVERY == 0:
            self._machine = CoordinatorMachine(self._settings)
            self._machine.restore(self._entries.items())
        return commands


@dataclass
class Mesh:
    """Those around the machine, and what they know. Plays on for ever."""

    rng: random.Random
    damage: float = 0.3
    """Share of the records that are damaged."""
    now: float = 0.0
    tasks: int = 0
    trained: int = -1
    """The newest version."""
    served: dict[str, int] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=lambda: {"e0": 0, "e1": 0, "judge": 0})
    trainer_incarnation: int = 0
    finalized: int = 0
    """Train batches."""
    orders: deque[Dispatch] = field(default_factory=lambda: deque(maxlen=200))
    rounds: deque[Any] = field(default_factory=lambda: deque(maxlen=50))
    sent: deque[bytes] = field(default_factory=lambda: deque(maxlen=100))

    def __post_init__(self) -> None:
        self._clients = Clients(self.rng)
        self._clients.repeat_times = (None, None, 3, 1024)

    def next(self) -> Step:
        rng = self.rng
        self.now += (
            rng.choice([0.0, 0.01, 0.01, 0.1, 0.1, 1.0]) if rng.random() < 0.98 else rng.choice([12.0, -5.0, 1e7])
        )
        if rng.random() < 0.1:
            return Step(self.now)
        if self.sent and rng.random() < 0.03:
            return Step(self.now, rng.choice(self.sent))
        record = self._record()
        value = encode(record)
        if isinstance(record, Task) and rng.random() < 0.2:
            value = json.dumps(msgpack.unpackb(value)).encode()
        self.sent.append(value)
        if rng.random() < self.damage:
            value = damaged(rng, value, list(self.sent))
        return Step(self.now, value)

    def hear(self, commands: list[Effect]) -> None:
        """What the machine has decided."""
        for command in commands:
            match command:
                case Write(record=Dispatch() as order):
                    self.orders.append(order)
                case Write(record=Cancel()):
                    pass
                case Write(record=ModelVersion() as announced):
                    self.rounds.append(announced)
                case Write(record=BatchRecord() as batch):
                    self._clients.noticed(batch)
                    if batch.state is BatchLifecycleState.FINALIZED:
                        self.finalized = max(self.finalized, batch.sequence)

    def _record(self) -> Record:
        rng = self.rng
        makers = (self._task, self._beat, self._finished, self._trained, self._synced, self._asked, self._other)
        (make,) = rng.choices(makers, (22, 10, 40, 8, 14, 5, 1))
        return make()

    def _task(self) -> Record:
        rng = self.rng
        self.tasks += 1
        pool = rng.choice([None, None, None, "policy", "judge", "nobody"])
        data = rng.choice([{}, {"a": [1, {"b": None}]}])
        return self._clients.task().model_copy(update={"pool": pool, "data": data})

    def _beat(self) -> Record:
        name = self.rng.choice(list(self.incarnations))
        if self.rng.random() < 0.03:
            self.incarnations[name] += 1
        return explorer_beat(
            name,
            incarnation=f"life-{self.incarnations[name]}",
            state=self.rng.choices(["ready", "syncing", "starting", "draining"], (20, 2, 1, 1))[0],
            slots=self.rng.choice([2, 4, 16]),
            model_version=self.served.get(name, -1),
            workflows=["math"],
            pool="judge" if name == "judge" else None,
            follows="none" if name == "judge" else "trainer",
            running=[
                RunningAttempt(
                    task_id=order.task.task_id,
                    attempt=order.attempt,
                    turns=self.rng.choice([None, Position(partition=2, offset=self.tasks)]),
                )
                for order in self.orders
                if order.explorer == name and self.rng.random() < 0.2
            ],
        )

    def _finished(self) -> Record:
        rng = self.rng
        if not self.orders:
            return self._beat()
        order = self.orders.popleft() if rng.random() < 0.8 else rng.choice(self.orders)
        done = order.repeat_times
        pieces = _pieces(rng, done, self.tasks)
        return completed(
            order,
            version=order.min_version,
            seconds=1.0,
            batch_type=order.batch_type,
            status=rng.choices(["completed", "partial", "failed"], (8, 1, 1))[0],
            metrics=[{"reward": rng.choice(REWARDS)}] * min(done, 8),
            experience=None if pieces else Position(partition=0, offset=self.tasks),
            pieces=pieces,
            error=rng.choice([None, "ValueError: é"]),
        )

    def _trained(self) -> Record:
        rng = self.rng
        if rng.random() < 0.05:
            self.trainer_incarnation += 1
        else:
            self.trained = min(self.trained + 1, self.finalized)
        return step_trained(
            max(0, self.trained - rng.choice([0, 0, 0, 0, 1])),
            f"life-{self.trainer_incarnation}",
            trainer="t",
            step=max(0, self.trained),
            publish=rng.random() < 0.9,
            again=rng.random() < 0.1,
            batch_id=rng.choice([None, "b0"]),
            metrics={"loss": 0.5},
            checksum="00",
            checkpoint=rng.choice([None, "step-1"]),
        )

    def _synced(self) -> Record:
        rng = self.rng
        if not self.rounds:
            return self._trained()
        announced = self.rounds[-1] if rng.random() < 0.9 else rng.choice(self.rounds)
        member = rng.choice(announced.members or [None])
        name = "e0" if member is None else member.explorer
        ok = rng.random() < 0.85
        if ok:
            self.served[name] = announced.version
        return WeightsSynced(
            explorer=name,
            incarnation=f"life-{self.incarnations.get(name, 0)}" if member is None else member.incarnation,
            model=announced.model,
            version=announced.version,
            epoch=announced.epoch,
            ok=ok,
            checksum=rng.choice(["", announced.checksum, announced.checksum, announced.checksum, "ff"]),
        )

    def _asked(self) -> Record:
        rng = self.rng
        clients, version = self._clients, max(self.trained, 0)
        ask = rng.choice([clients.submit, clients.finalize, clients.abort, clients.cancel, None, None])
        if ask is not None:
            return ask()
        if rng.random() < 0.5:
            return clients.contribute(self.tasks, version)
        which = rng.choice([None, 0, version])
        return PublishVersion(client="c0", command_id=f"{rng.randrange(10**6)}", model="policy", version=which)

    def _other(self) -> Record:
        rng = self.rng
        name = rng.choice(list(self.incarnations))
        trainer = {"trainer": "t", "incarnation": f"life-{self.trainer_incarnation}", "model": "policy"}
        return rng.choice(
            [
                ExplorerLeft(explorer=name, incarnation=f"life-{self.incarnations[name]}", reason="stop"),
                trainer_beat(max(self.trained, 0), trainer["incarnation"], trainer="t", step=1),
                VersionRefused(**trainer, version=max(self.trained, 0), reason="gone", available=[0]),
            ]
        )


def _pieces(rng: random.Random, samples: int, offset: int) -> list[ExperiencePiece]:
    """The records of a group that is too large for one; none where it is not."""
    if samples < 2 or rng.random() < 0.7:
        return []
    first = rng.randrange(1, samples) if rng.random() < 0.8 else 1
    sizes = [first, samples - first] if samples > 100 or rng.random() < 0.5 else [1] * samples
    return [
        ExperiencePiece(samples=size, position=Position(partition=number % 8, offset=offset))
        for number, size in enumerate(sizes)
    ]
