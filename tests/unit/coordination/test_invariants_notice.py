"""Each invariant's check fires: what a coordinator does is shown to the observer spoiled in one way, and that invariant
breaks.
"""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    CommandReply,
    Dispatch,
    ExplorerHeartbeat,
    ManifestEntry,
    ModelVersion,
    TaskResult,
)
from tests.support.simulation import Decision, Honest, Invariant, InvariantViolatedError, World, random_history
from trinity_bus.coordination import Effect, EventArrived, Input, Write

EVENTS = 1500
SEEDS = range(12)  # tried one after another: not every history has what is to be spoiled


class Spoiled(Honest):
    def __init__(self, change: Callable[[Any], list[Any]]) -> None:
        self._change = change

    def decided(self, world: World, inputs: list[Input], effects: list[Effect]) -> Decision:
        shown: list[Effect] = []
        for command in effects:
            shown += self._change(command)
        return inputs, shown


def is_written(command: Any, kind: type[Any]) -> bool:
    return isinstance(command, Write) and isinstance(command.record, kind)


def changed(kind: type[Any], fits: Callable[[Any], bool], **changes: Callable[[Any], Any]) -> Honest:
    def change(command: Any) -> list[Any]:
        if not is_written(command, kind) or not fits(command.record):
            return [command]
        values = {name: value(command.record) for name, value in changes.items()}
        return [replace(command, record=command.record.model_copy(update=values))]

    return Spoiled(change)


def dropped(kind: type[Any], fits: Callable[[Any], bool]) -> Honest:
    return Spoiled(lambda command: [] if is_written(command, kind) and fits(command.record) else [command])


def doubled(kind: type) -> Honest:
    return Spoiled(lambda command: [command] * (2 if is_written(command, kind) else 1))


def is_trained(batch: BatchRecord) -> bool:
    return batch.state is BatchLifecycleState.FINALIZED and bool(batch.manifest) and batch.batch_type == "train"


def has_result(reply: CommandReply) -> bool:
    return reply.result is not None


def of_a_million(reply: Any) -> Any:
    return reply.result.model_copy(update={"finished_task_count": 10**6})


def is_in_pieces(result: TaskResult) -> bool:
    return len(result.parts) > 1 and len({part.attempt for part in result.parts}) == 1


def moved_parts(result: TaskResult) -> list[Any]:
    return [
        replace(part, position=part.position and replace(part.position, offset=part.position.offset + 1))
        for part in result.parts
    ]


class NamedAgain(Honest):
    """Each manifest has an entry of the one before it too."""

    def __init__(self) -> None:
        self._entry: ManifestEntry | None = None

    def decided(self, world: World, inputs: list[Input], effects: list[Effect]) -> Decision:
        return inputs, [self._again(command) for command in effects]

    def _again(self, command: Any) -> Effect:
        if not is_written(command, BatchRecord) or not is_trained(command.record):
            return command
        entry, self._entry = self._entry, command.record.manifest[0]
        manifest = [*command.record.manifest, *([] if entry is None else [entry])]
        return replace(command, record=command.record.model_copy(update={"manifest": manifest}))


class OtherHeartbeats(Honest):
    """The observer hears other heartbeats than the coordinator."""

    def __init__(self, **changes: int) -> None:
        self._changes = changes

    def decided(self, world: World, inputs: list[Input], effects: list[Effect]) -> Decision:
        return [self._other(given) for given in inputs], effects

    def _other(self, given: Input) -> Input:
        if isinstance(given, EventArrived) and isinstance(given.event, ExplorerHeartbeat):
            return replace(given, event=given.event.model_copy(update=self._changes))
        return given


class OtherSettings(Honest):
    """The observer knows other limits than the coordinator."""

    def __init__(self, **settings: int) -> None:
        self._settings = settings

    def decided(self, world: World, inputs: list[Input], effects: list[Effect]) -> Decision:
        world.invariants.settings = world.settings.model_copy(update=self._settings)
        return inputs, effects


class Forgetful(Honest):
    """Some changes do not reach the changelog."""

    def stored(self, changes: list[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
        return [(key, value) for key, value in changes if not key.startswith("explorer/explorer-1")]


class Leaking(Honest):
    """The machine keeps something of every transaction."""

    def decided(self, world: World, inputs: list[Input], effects: list[Effect]) -> Decision:
        machine: Any = world.process.machine
        machine.leak = [*getattr(machine, "leak", []), *range(10)]
        return inputs, effects


SPOILS: list[tuple[Invariant, Callable[[], Honest]]] = [
    (Invariant.ONE_RESULT, lambda: doubled(TaskResult)),
    (Invariant.LIVENESS, lambda: dropped(CommandReply, lambda r: r.error == "timeout")),
    (Invariant.REAL, lambda: changed(TaskResult, lambda r: any(part.position for part in r.parts), parts=moved_parts)),
    (Invariant.REAL, lambda: changed(TaskResult, is_in_pieces, parts=lambda r: r.parts[:-1])),
    (Invariant.REAL, lambda: changed(TaskResult, is_in_pieces, parts=lambda r: r.parts[::-1])),
    (Invariant.WHOLE, lambda: changed(TaskResult, lambda r: r.completed_runs > 1, completed_runs=lambda _: 1)),
    (Invariant.WHOLE, lambda: changed(TaskResult, lambda r: bool(r.parts), parts=lambda r: [*r.parts, r.parts[0]])),
    (Invariant.ONCE, NamedAgain),
    (Invariant.MANIFEST, lambda: changed(BatchRecord, is_trained, manifest=lambda b: b.manifest[1:])),
    (Invariant.MANIFEST, lambda: changed(BatchRecord, is_trained, failed_task_count=lambda b: b.failed_task_count + 1)),
    (Invariant.MANIFEST, lambda: changed(TaskResult, lambda r: r.status == "completed", version_max=lambda _: 10**6)),
    (Invariant.TRANSITIONS, lambda: dropped(BatchRecord, lambda b: b.state is BatchLifecycleState.FINALIZING)),
    (Invariant.SEQUENCE, lambda: changed(BatchRecord, is_trained, sequence=lambda b: b.sequence + 1)),
    (Invariant.STALENESS, lambda: OtherSettings(max_staleness=-1)),
    (Invariant.INFLIGHT, lambda: OtherSettings(max_inflight_batches=0)),
    (Invariant.SLOTS, lambda: OtherHeartbeats(slots=1)),
    (Invariant.DISPATCH, lambda: OtherHeartbeats(model_version=-1)),
    (Invariant.ATTEMPTS, lambda: changed(Dispatch, lambda _: True, attempt=lambda dispatch: dispatch.attempt + 1)),
    (Invariant.ATTEMPTS, lambda: OtherSettings(max_attempts=0)),
    (Invariant.EPOCHS, lambda: changed(ModelVersion, lambda _: True, epoch=lambda _: 1)),
    (Invariant.REPLIES, lambda: doubled(CommandReply)),
    (Invariant.REPLY_IS_TRUE, lambda: changed(CommandReply, has_result, error=lambda _: "unknown_batch")),
    (Invariant.SAME_RESULT, lambda: changed(CommandReply, has_result, result=of_a_million)),
    (Invariant.RESTORE, Forgetful),
    (Invariant.MEMORY, Leaking),
]


@pytest.mark.parametrize(("invariant", "spoil"), SPOILS)
def test_a_breach_is_noticed_by_its_law(invariant: Invariant, spoil: Callable[[], Honest]) -> None:
    with pytest.raises(InvariantViolatedError) as broken:  # noqa: PT012 - which history it is does not matter
        for seed in SEEDS:
            random_history(seed, EVENTS, spoil()).heal()
    assert broken.value.invariant is invariant, broken.value


def test_every_law_has_a_breach_here() -> None:
    assert {invariant for invariant, _ in SPOILS} == set(Invariant)
