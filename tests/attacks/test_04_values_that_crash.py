"""Attack 4: values that decode and then crash the machine.

Before: ``StepTrained.version=-1`` or ``RolloutFinished.samples=-1`` ended every coordinator, again after each start.
Now every number has a range; and an input that upsets the machine all the same is a dead letter with the traceback,
and all is as it was before it. Records of a few KiB that unpack to 100 MiB pass the broker's limit, and no reader's.
"""

import asyncio
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeAliasType, get_args, get_origin

import msgpack
import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel

from benchmarks._records import completed, step_trained
from schemas import (
    ExperienceGroup,
    ExplorerHeartbeat,
    ExplorerLeft,
    ModelVersion,
    Record,
    StepTrained,
    SubmitBatch,
)
from schemas.codec import RECORDS, DecodeError, decode, encode
from schemas.fields.items import Item
from schemas.topic import DLQ_DETAIL, DLQ_REASON, DLQ_SHA256, DLQ_SIZE, DLQ_TOPIC, Topic
from schemas.topics import (
    COMMANDS,
    COORDINATOR_STATE,
    DEAD_LETTERS,
    EXPLORER_EVENTS,
    MODEL_VERSIONS,
    RESULTS,
    TASKS,
    TRAINER_EVENTS,
)
from tests.support.fakes.mesh_records import dispatch
from tests.support.fakes.workers import FakeExplorer, FakeTrainer
from tests.support.mesh.mesh import Mesh, send_tasks
from tests.support.mesh.records import record_of, take
from trinity_bus.bus import Bus, Received
from trinity_bus.bus.read.received import header
from trinity_bus.config import CoordinatorSettings, Settings, TelemetrySettings
from trinity_bus.coordination import CoordinatorMachine, EventArrived
from workers.coordinator import outputs
from workers.coordinator.outputs import INPUTS_KEY, pack_positions
from workers.coordinator.pending_commit import with_traceback
from workers.coordinator.service import Coordinator

GOLDEN = Path(__file__).parents[1] / "unit" / "schemas" / "golden"
FREE_OF_RANGE = {"Metrics", "PlainMap"}
"""Metrics may be anything, and free-form data is the workflow's; both are tested by what readers make of them."""


def numbers(annotation: Any, metadata: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every ``int`` and ``float`` in an annotation, with what limits it."""
    if isinstance(annotation, TypeAliasType):
        if annotation.__name__ not in FREE_OF_RANGE:
            yield from numbers(annotation.__value__, metadata)
    elif get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        yield from numbers(inner, (*metadata, *more))
    elif annotation in (int, float):
        yield annotation, metadata
    elif get_args(annotation):
        for inner in get_args(annotation):
            yield from numbers(inner, metadata if get_origin(annotation) is not list else ())


def limits(metadata: tuple[Any, ...]) -> tuple[bool, bool]:
    """Whether there is a least and a greatest value."""
    found = [*metadata, *(inner for field in metadata for inner in getattr(field, "metadata", []))]
    least = any(isinstance(one, Ge | Gt) or getattr(one, "ge", getattr(one, "gt", None)) is not None for one in found)
    most = any(isinstance(one, Le | Lt) or getattr(one, "le", getattr(one, "lt", None)) is not None for one in found)
    return least, most


def models(base: type[BaseModel]) -> list[type[BaseModel]]:
    return [cls for sub in base.__subclasses__() for cls in (sub, *models(sub))]


@pytest.mark.parametrize("cls", [cls for cls in models(Record) if cls.__module__.startswith("schemas.")])
def test_every_number_of_every_record_has_a_range(cls: type[Record]) -> None:
    for name, field in cls.model_fields.items():
        for kind, metadata in numbers(field.annotation, tuple(field.metadata)):
            assert limits(metadata) == (True, True), f"{cls.__name__}.{name}: {kind.__name__} has no range"


@pytest.mark.parametrize("cls", Item.__subclasses__())
def test_every_number_of_every_item_has_a_range(cls: type[Item]) -> None:
    for field in msgspec.structs.fields(cls):
        for kind, metadata in numbers(field.type):
            assert limits(metadata) == (True, True), f"{cls.__name__}.{field.name}: {kind.__name__} has no range"


def plain_records() -> list[Any]:
    return [cls for cls in RECORDS if cls is not ExperienceGroup]


@pytest.mark.parametrize("cls", plain_records(), ids=lambda cls: cls.SCHEMA)
@pytest.mark.parametrize("number", [-(2**63), -2, 2**63, 2**64 - 1, -1e308, 1e308, math.nan, math.inf])
def test_a_number_that_nobody_means_is_refused(cls: type[Record], number: float) -> None:
    """Each number of each golden record, one after the other."""
    wire = msgpack.unpackb((GOLDEN / f"{cls.SCHEMA}.v1.msgpack").read_bytes())
    for name, spoiled in with_another_number(wire, number):
        if not is_free(name):
            with pytest.raises(DecodeError, match=r"^(bad_value|wrong_type|unsupported_version): "):
                decode(msgpack.packb(spoiled), cls)


def is_free(name: str) -> bool:
    """Whether the number is a metric's, a workflow's, or a seed, which may be any integer."""
    return any(part in name for part in ("metrics", "data", "values", "seed"))


def with_another_number(wire: Any, number: float, path: str = "") -> Iterator[tuple[str, Any]]:
    for step in list(wire) if isinstance(wire, dict) else range(len(wire)):
        place, old = f"{path}.{step}", wire[step]
        if isinstance(old, dict | list):
            others = with_another_number(old, number, place)
        elif isinstance(old, int | float) and not isinstance(old, bool):
            others = iter([(place, number)])
        else:
            continue
        for name, spoiled in others:
            changed = wire.copy()
            changed[step] = spoiled
            yield name, changed


def test_an_explorer_that_fails_for_a_day_is_still_asked() -> None:
    """Two to the power of its failures was an overflow after the 1,025th."""
    machine = CoordinatorMachine(CoordinatorSettings())
    beat = ExplorerHeartbeat(explorer="e", incarnation="i", state="ready", slots=1, workflows=["math"])
    machine.handle(EventArrived(beat), 0.0)
    machine.handle(EventArrived(step(0)), 0.0)
    machine.sync.state.rounds = {"e": ("i", 5000)}
    machine.sync.state.pending.clear()
    for second in range(1, 60):
        machine.handle(EventArrived(beat), float(second))
    assert machine.sync.state.rounds["e"][1] > 5000


def step(version: int) -> StepTrained:
    return step_trained(version, "i", trainer="t")


# On a real broker.


def peak_mib(pid: int) -> int:
    """Most memory that a process has ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def but(record: Record, **fields: Any) -> bytes:
    value: bytes = msgpack.packb({**msgpack.unpackb(encode(record)), **fields})
    return value


@pytest.mark.integration
async def test_what_no_reader_takes_is_a_dead_letter_and_work_goes_on(mesh: Mesh) -> None:
    """And a coordinator whose state knows topics of an earlier version says so, and goes on."""
    bomb, over = bytes(100 << 20), b"x" * (TASKS.max_message_bytes + 1)
    forged = step_trained(1000, "rogue", ("192.0.2.1", 1))
    left = ExplorerLeft(explorer="explorer-0", incarnation="life-1")
    async with (
        mesh.connected() as (bus, producer),
        bus.reader(MODEL_VERSIONS, start="beginning") as announced,
        AIOKafkaProducer(
            bootstrap_servers=mesh.kafka.bootstrap_servers,
            compression_type="zstd",
            max_request_size=1 << 30,
            max_batch_size=1 << 30,
        ) as outsider,
    ):
        before = pack_positions({("events", 3): 12, ("tasks", 0): 0})
        await (await producer.send_raw(COORDINATOR_STATE, INPUTS_KEY, before, partition=0))
        explorer = FakeExplorer(bus)
        with mesh.coordinator() as process:
            async with explorer.alive(), FakeTrainer(bus).alive() as trainer:
                await send_tasks(producer, 4)
                await trainer.until_trained(1)
                finished = completed(record_of(explorer.orders[0]), version=0, seconds=1.0)
                attacks: list[tuple[Topic, str, bytes, str]] = [
                    (EXPLORER_EVENTS, "e", but(finished, samples=-1), "bad_value"),
                    (EXPLORER_EVENTS, "e", but(finished, seconds=-1), "bad_value"),
                    (TRAINER_EVENTS, "t", but(step(5), version=-1), "bad_value"),
                    (EXPLORER_EVENTS, "trainer-0", encode(forged), "forged_author"),
                    (EXPLORER_EVENTS, "explorer-7", encode(left), "forged_sender"),
                    *((topic, "bomb", bomb, "too_large") for topic in (TASKS, COMMANDS, EXPLORER_EVENTS)),
                    (TASKS, "over", over, "too_large"),
                ]
                peak = peak_mib(process.pid)
                for topic, key, value, _ in attacks:
                    name = topic.full_name(mesh.kafka.namespace)
                    await outsider.send_and_wait(name, value, key=key.encode(), partition=0)
                letters = await read(bus, DEAD_LETTERS, len(attacks))
                await send_tasks(producer, 4, "later")
                await trainer.until_trained(2)
                assert process.poll() is None
                assert peak_mib(process.pid) - peak < 100
        assert "positions in events, which coordinators of this version do not read" in mesh.log()
        versions = [received.record async for received in announced.replay()]
    told = [[header(letter.headers, name) for name in (DLQ_TOPIC, DLQ_REASON)] for letter in letters]
    assert sorted(told) == sorted([topic.name, reason] for topic, _, _, reason in attacks)
    large = [letter for letter in letters if header(letter.headers, DLQ_REASON) == "too_large"]
    assert all(len(letter.raw) <= 1024 for letter in large)
    assert sum("unpacks to more than" in (header(letter.headers, DLQ_DETAIL) or "") for letter in large) == 3
    (single,) = [letter for letter in large if letter.raw_key == b"over"]
    assert header(single.headers, DLQ_SIZE) == str(len(over))
    assert header(single.headers, DLQ_SHA256) == hashlib.sha256(over).hexdigest()
    assert single.raw == over[:1024]
    # The forged version moved nobody.
    assert {one.master_address for one in versions if isinstance(one, ModelVersion)} == {"127.0.0.1"}


class OversightError(Exception):
    """What no test has found."""


class Careless:
    """Builds an oversight into the coordinator: it stumbles over whatever names ``poison``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
        self.stumbled = 0
        self._place = place
        self._decide, self._write = CoordinatorMachine.handle_all, outputs.Outputs.carry_out

        # Bound methods would not be given the machine, or the outputs, that they are called on.
        def decided(machine: CoordinatorMachine, given: Any, now: float) -> Any:
            return self._decided(machine, given, now)

        async def written(to: outputs.Outputs, *given: Any, **named: Any) -> None:
            await self._written(to, *given, **named)

        monkeypatch.setattr(CoordinatorMachine, "handle_all", decided)
        monkeypatch.setattr(outputs.Outputs, "carry_out", written)

    def _decided(self, machine: CoordinatorMachine, given: Any, now: float) -> Any:
        inputs = list(given)
        poisoned = "'poison'" in repr(inputs)
        if poisoned and self._place == "at once":
            self._stumble()
        commands = self._decide(machine, inputs, now)
        if poisoned and self._place == "with everything changed":
            self._stumble()
        return commands

    async def _written(self, to: outputs.Outputs, commands: Any, *others: Any, **named: Any) -> None:
        commands = list(commands)
        if self._place == "in the transaction" and "'poison'" in repr(commands):
            self._stumble()
        await self._write(to, commands, *others, **named)

    def _stumble(self) -> None:
        self.stumbled += 1
        raise OversightError(self._place)


@pytest.mark.integration
@pytest.mark.parametrize("place", ["at once", "with everything changed", "in the transaction"])
async def test_what_upsets_the_machine_is_refused_and_all_is_as_it_was(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    careless = Careless(monkeypatch, place)
    settings = Settings(
        kafka=mesh.kafka,
        coordinator=CoordinatorSettings(batch_size=4, tick_s=0.05),
        telemetry=TelemetrySettings(run_dir=tmp_path),
    )

    async with mesh.connected() as (bus, producer):
        coordinator = Coordinator(settings, bus)
        service = asyncio.create_task(coordinator.run())
        explorer = FakeExplorer(bus)
        async with explorer.alive(), FakeTrainer(bus).alive() as trainer:
            await send_tasks(producer, 5)
            await producer.send(
                EXPLORER_EVENTS, "nobody", completed(dispatch("poison", explorer="nobody"), version=0, seconds=1.0)
            )
            poison = SubmitBatch(client="c", command_id="1", batch_id="poison", expected_task_count=1)
            await producer.send(COMMANDS, "poison", poison)
            await send_tasks(producer, 3, "more")
            await trainer.until_trained(2)
            letters = await read(bus, DEAD_LETTERS, 2)
            answers = await read(bus, RESULTS, 8)
        assert not service.done()
        assert coordinator.machine is not None
        assert "poison" not in coordinator.machine.ledger.batches
        service.cancel()
        await asyncio.wait([service])
    assert {header(letter.headers, DLQ_REASON) for letter in letters} == {"not_handled"}
    assert {header(letter.headers, DLQ_TOPIC) for letter in letters} == {"explorer-events", "commands"}
    assert all(f"OversightError: {place} at " in str(header(letter.headers, DLQ_DETAIL)) for letter in letters)
    assert {record_of(answer).status for answer in answers} == {"completed"}
    assert len({record_of(answer).task_id for answer in answers}) == 8
    # Once with others, and each once alone.
    assert careless.stumbled >= 3


async def read(bus: Bus, topic: Topic, count: int) -> list[Received[Any]]:
    async with bus.reader(topic, start="beginning") as reader:
        found = await take(reader, count)
    assert len(found) == count
    return found


def test_a_traceback_is_told_in_one_line() -> None:
    def fail() -> None:
        raise ValueError("two\nlines " * 100)

    with pytest.raises(ValueError, match="two") as caught:
        fail()
    line = with_traceback(caught.value)
    assert line.startswith("ValueError: two\\nlines")
    assert line.isprintable()
    assert len(line) < 2000
    assert f"{Path(__file__).name}:{caught.traceback[-1].lineno + 1} fail" in line
