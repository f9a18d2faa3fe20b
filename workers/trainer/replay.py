"""Steps of a run trained once more, from one of them on, with other settings perhaps: a shadow that ends.

::

    --from-step 12 --set trainer.loss=gspo, and there is a checkpoint of step 8

    live run   1 ... 8 (checkpoint) 9 10 11 12 13 ... 20
    replay            '---------->  9 10 11 | 12 13 ... 20         a folder, a name, and records on `steps` of its own
                                   as it was   as it is to be

docs/replay.md says what holds, and what is refused.
"""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from schemas import Position, StepBegun
from schemas.topics import EXPERIENCES, STEPS
from trinity_bus.bus import Bus
from trinity_bus.config import Settings, TrainerSettings, WrongSettingsError
from trinity_bus.errors import ConfigError
from trinity_bus.training import checkpoint
from trinity_bus.training.checkpoint import Follows, manifest
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.objectives import Need, registry
from trinity_bus.training.objectives.advantages import Advantage
from trinity_bus.training.ranks.followers import ChildRanks
from trinity_bus.training.stages import Stage
from workers.preconditions import checkpoint_dir, ensure
from workers.trainer.batch_schedule import positions_of
from workers.trainer.engines import StartingPoint
from workers.trainer.service import learned_from
from workers.trainer.step_log import Recorded, RecordedSteps
from workers.trainer.without_batches import ShadowSteps, ensure_kept, train_without_batches

log = logging.getLogger(__name__)

_SAID_BY_OPTIONS: Final = {"name": "--name", "checkpoint_dir": "--dir", "total_steps": "--to-step"}
# Settings by which the live run chose what its steps are made of, as their records say
_OF_THE_RECORDS: Final = frozenset({
    "limited_sampling", "effective_groups", "effective_batches", "replay_groups", "replay_steps", "replay_decay",
    "examples", "examples_per_step",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    live: Settings
    # With what is to be otherwise
    changed: Settings
    name: str
    directory: Path
    # The first with the changed settings
    from_step: int
    # The last; absent: the last that has begun
    to_step: int | None = None

    @property
    def follows(self) -> Follows:
        return Follows(
            trainer=self.live.trainer.name,
            run=checkpoint.read_run(checkpoint_dir(self.live)),
            from_step=self.from_step,
            settings=manifest.shaping(self.changed.mesh, self.changed.trainer),
        )

    @property
    def changes(self) -> list[str]:
        live, changed = (manifest.shaping(each.mesh, each.trainer) for each in (self.live, self.changed))
        return manifest.differences(live, changed)

    def check(self) -> None:
        if self.live.trainer.stages or self.changed.trainer.stages:
            raise ConfigError(
                "trainer.stages: a replay is of one stage; say `trinity-bus --set trainer.stages=[] --set "
                "trainer.checkpoint_dir=... --set trainer.name=<trainer>/<stage> replay ...`, with its settings"
            )
        if self.name == self.live.trainer.name:
            raise ConfigError(f"{self.name} is the live trainer's name: give the replay another one")
        if self.directory.resolve() == checkpoint_dir(self.live).resolve():
            raise ConfigError(f"{self.directory} is the live trainer's: give the replay another folder")
        if without_effect := self._without_effect():
            raise WrongSettingsError(without_effect)

    def _without_effect(self) -> list[str]:
        live, changed = self.live.trainer, self.changed.trainer
        names = [name for name in type(live).model_fields if getattr(live, name) != getattr(changed, name)]
        lines = [f"trainer.{name}: say it with {_SAID_BY_OPTIONS[name]}" for name in names if name in _SAID_BY_OPTIONS]
        chosen = [name for name in names if name in _OF_THE_RECORDS]
        if "strategy" in names and "mix" not in {live.strategy, changed.strategy}:
            chosen.append("strategy")
        return lines + [
            f"trainer.{name}: {getattr(live, name)} -> {getattr(changed, name)}: a replay trains on what the live "
            "run's steps were made of, whatever this is: leave it"
            for name in chosen
        ]


def parts_of(request: ReplayRequest, *, changes: bool, begin: int, last: int) -> list[Settings]:
    """Return with which settings what is to be trained, in order; ``begin``: the step whose weights it begins with."""
    parts = [(request.live, request.from_step - 1)] if changes else []
    parts.append((request.changed, last))
    return [_own(request, settings, through) for settings, through in parts if begin < through]


def _own(request: ReplayRequest, settings: Settings, through: int) -> Settings:
    exported, own = settings.trainer.export_dir, settings is request.changed
    trainer = settings.trainer.model_copy(
        update={
            "name": request.name,
            "role": "shadow",
            "shadows": request.live.trainer.name,
            "checkpoint_dir": request.directory,
            "total_steps": through,
            "export_dir": exported if own and exported != request.live.trainer.export_dir else None,
        }
    )
    return settings.model_copy(update={"trainer": trainer})


async def replay(request: ReplayRequest) -> int:
    # Returns the last step.
    for settings in (request.live, request.changed):
        ensure("trainer", settings)
    request.check()
    changes, follows = request.changes, request.follows
    origin = StartingPoint(checkpoint_dir(request.live), request.from_step - 1)
    with checkpoint.exclusive(request.directory):
        begin = max(checkpoint.steps(request.directory), default=origin.step)
        async with Bus(request.changed.kafka, client_id=request.name) as bus:
            last = await _last(bus, follows, request, begin)
            _note(request.directory, follows)
            for line in changes or ["nothing is changed"]:
                log.info("%s, from step %d on: %s", request.name, request.from_step, line)
            for part in parts_of(request, changes=bool(changes), begin=begin, last=last):
                await _train(request, part, origin, bus)
    return last


async def _last(bus: Bus, follows: Follows, request: ReplayRequest, begin: int) -> int:
    known = RecordedSteps(follows.trainer)
    async with bus.reader(STEPS, start="beginning") as reader:
        async for received in reader.replay():
            known.take(received)
    newest = max(known.of(follows.run), default=0)
    last = newest if request.to_step is None else request.to_step
    if not request.from_step <= last <= newest:
        raise TrainingError(
            f"steps {request.from_step} to {last} cannot be trained once more: {follows.trainer} has begun {newest}"
        )
    starts = [*checkpoint.steps(request.directory), *checkpoint.steps(checkpoint_dir(request.live))]
    await ensure_kept(bus, known, follows.run, first=begin + 1, last=last, starts=starts)
    first = known.of(follows.run).get(max(request.from_step, begin + 1))
    if first is not None:
        await ensure_taught(bus, first, request.changed.trainer)
    return last


async def ensure_taught(bus: Bus, first: Recorded, settings: TrainerSettings) -> None:
    """Refuse an advantage that needs a teacher where the run had none, before a model is loaded."""
    advantage = registry.make("advantage", Advantage, settings)
    if Need.TEACHER_LOGPROBS not in advantage.needs or first.unreadable:
        return
    (received,) = await bus.fetch(STEPS, [Position(partition=0, offset=first.offset)])
    if not isinstance(begun := received.record, StepBegun):
        return
    entries = [*begun.groups, *begun.replayed]
    found = await bus.fetch(EXPERIENCES, positions_of(begun, entries)) if entries else []
    if not found:
        return
    if all(getattr(each.record, "teacher_logprobs", None) is None for each in found):
        raise TrainingError(
            f"trainer.advantage={settings.advantage!r} needs what a teacher says of each token, and no sample of step "
            f"{begun.step} of {begun.trainer} has that: its workflow did not set Rollout.teacher_logprobs"
        )


def _note(directory: Path, follows: Follows) -> None:
    found = checkpoint.read_follows(directory)
    if found is None:
        checkpoint.note_follows(directory, follows)
    elif found != follows:
        raise TrainingError(
            f"{directory} is of another replay, from step {found.from_step} of {found.trainer} on or with other "
            "settings: give this one another --name"
        )


async def _train(request: ReplayRequest, settings: Settings, origin: StartingPoint, bus: Bus) -> None:
    stage = Stage("", settings, request.directory, is_last=True)
    topic = await asyncio.to_thread(learned_from, stage)
    seed, before = settings.trainer.seed, request.live.trainer.seed
    async with bus.reader(STEPS, start="beginning") as steps:
        await train_without_batches(
            stage,
            topic,
            lambda around: ShadowSteps(around, steps, origin=origin.directory, seed=None if seed == before else seed),
            bus=bus,
            ranks=ChildRanks(),
            origin=origin,
        )
