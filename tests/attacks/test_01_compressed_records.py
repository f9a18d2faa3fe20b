"""Batches that a reader cannot unpack: every codec is read, everything else is passed over and named."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from schemas.event import Position
from schemas.topic import DLQ_LAST_OFFSET, DLQ_OFFSET, DLQ_PARTITION, DLQ_REASON, DLQ_TOPIC
from schemas.topics import DEAD_LETTERS, TASKS
from tests.support.fakes.workers import FakeExplorer, FakeTrainer
from tests.support.faults.raw_batches import packed_with, signed
from tests.support.mesh.forks import forked
from tests.support.mesh.mesh import PROGRAM, Mesh, environment, own_broker, send_tasks, unused
from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.probe import probe
from tests.support.mesh.records import record_of, take
from tests.support.mesh.waiting import until, wait_until
from trinity_bus.broker import EmbeddedBroker
from trinity_bus.bus import Bus, Reader, Undecodable
from trinity_bus.bus.read.received import header
from trinity_bus.config import KafkaSettings

pytestmark = pytest.mark.integration
UNREAD_S = 4
"""More than a busy machine keeps a process waiting."""
CODECS = ("gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One of its own, whose files are at hand."""
    with EmbeddedBroker(own_broker(tmp_path_factory.mktemp("log"))) as running:
        yield running


def task(task_id: str) -> bytes:
    return json.dumps({"task_id": task_id, "workflow": "math", "prompt": "1 + 1", "answer": "2"}).encode()


async def send(kafka: KafkaSettings, codec: str | None, ids: list[str]) -> int:
    """Tasks as one batch of another client, to partition 0; returns the first offset."""
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, compression_type=codec) as outsider:
        batch = outsider.create_batch()
        for task_id in ids:
            batch.append(key=task_id.encode(), value=task(task_id), timestamp=None)
        sent = await outsider.send_batch(batch, TASKS.full_name(kafka.namespace), partition=0)
        return int((await sent).offset)


def frames(file: Path) -> list[tuple[int, bytes]]:
    """Where each batch of a segment lies, and its bytes."""
    data, at, found = file.read_bytes(), 0, []
    while at + 12 <= len(data) and (size := int.from_bytes(data[at + 8 : at + 12])):
        found.append((at, data[at : at + 12 + size]))
        at += 12 + size
    return found


def damage(raw: bytes, kind: str) -> bytes:
    """A batch of the same length that no reader can make anything of."""
    match kind:
        case "checksum":
            return raw[:-3] + bytes([raw[-3] ^ 1]) + raw[-2:]
        case "codec":
            return packed_with(raw, 6, raw[61:])
        case "body":
            return packed_with(raw, raw[22] & 7, b"\xa5" * (len(raw) - 61))
        case _:
            return signed(raw[:61] + b"\x7f" * (len(raw) - 61))


async def test_every_codec_is_read_one_after_the_other_and_by_position(mesh: Mesh) -> None:
    async with mesh.connected() as (bus, _), bus.reader(TASKS, start="beginning") as reader:
        places = {codec: await send(mesh.kafka, codec, [f"{codec}-{n}" for n in range(5)]) for codec in CODECS}
        found = await take(reader, 20)
        assert [record_of(record).task_id for record in found] == [f"{c}-{n}" for c in CODECS for n in range(5)]
        fetched = await bus.fetch(TASKS, [Position(partition=0, offset=at + 2) for at in places.values()])
        assert [record_of(record).task_id for record in fetched] == [f"{codec}-2" for codec in CODECS]


@pytest.mark.parametrize("codec", CODECS)
async def test_the_mesh_may_pack_its_own_records_with_any(kafka: KafkaSettings, tmp_path: Path, codec: str) -> None:
    mesh = Mesh(kafka.model_copy(update={"compression": codec}), tmp_path)

    async with mesh.connected() as (bus, producer), bus.reader(TASKS, start="beginning") as reader:
        await send_tasks(producer, 50)
        await take(reader, 50)
        async with bus.producer(transactional_id="x") as transactional:
            async with transactional.transaction():
                await transactional.send_all(TASKS, [("k", task("in-a-transaction"))], partition=0)
            (last,) = await reader.batch(10)
            assert record_of(last).task_id == "in-a-transaction"


async def test_batches_that_cannot_be_read_are_dead_letters_and_the_coordinator_goes_on(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    kinds = ("checksum", "codec", "body", "records")
    mesh = Mesh(broker.kafka_settings(), tmp_path)

    async with mesh.connected() as (bus, _), bus.reader(DEAD_LETTERS, start="beginning") as letters:
        bad: dict[int, str] = {}
        for kind, codec in zip(kinds, ("lz4", "gzip", "zstd", None), strict=True):
            await send(mesh.kafka, None, [f"before-{kind}"])
            bad[await send(mesh.kafka, codec, [f"lost-{kind}-{n}" for n in range(3)])] = kind
        await send(mesh.kafka, None, ["after"])
        log = broker.folder.kafka / f"{TASKS.full_name(mesh.kafka.namespace)}-0" / f"{0:020}.log"
        with log.open("r+b") as file:
            for at, raw in frames(log):
                wrong = bad.get(int.from_bytes(raw[:8]))
                if wrong is not None:
                    file.seek(at)
                    file.write(damage(raw, wrong))
        explorer = FakeExplorer(bus)

        def ordered() -> set[str]:
            return {record_of(order).task.task_id for order in explorer.orders}

        async with explorer.alive(), FakeTrainer(bus).alive():
            # One that is started anew in the middle meets nothing twice, and nothing stops it.
            for run in range(2):
                with mesh.coordinator(batch_size=1) as process:
                    await until(lambda: len(ordered()) >= 5)
                    if run:
                        await send(mesh.kafka, "snappy", ["late"])
                        await until(lambda: "late" in ordered())
                    assert process.poll() is None, mesh.log(mesh.started)
        expected = {f"before-{kind}" for kind in kinds} | {"after", "late"}
        assert ordered() == expected
        found = await take(letters, 4)
        found += await letters.batch(0.5)
        assert [header(letter.headers, DLQ_TOPIC) for letter in found] == ["tasks"] * 4
        assert [header(letter.headers, DLQ_PARTITION) for letter in found] == ["0"] * 4
        spans = [[int(header(x.headers, name) or -1) for name in (DLQ_OFFSET, DLQ_LAST_OFFSET)] for x in found]
        assert spans == [[at, at + 2] for at in bad]
        reasons = [header(letter.headers, DLQ_REASON) for letter in found]
        assert reasons == ["corrupt", "unknown_codec", "corrupt", "corrupt"]

        # The other reader of a topic.
        first, last = min(bad) - 1, max(bad) + 3
        positions = [Position(partition=0, offset=offset) for offset in (first, min(bad) + 1, last)]
        good, lost, end = await bus.fetch(TASKS, positions)
        assert (record_of(good).task_id, record_of(end).task_id) == ("before-checksum", "after")
        assert isinstance(lost.record, Undecodable)
        assert [met.offset for met in bus.passed_over()] == list(bad)[1:]


async def until_it(reader: Reader, *, keeps_up: bool) -> None:
    async with asyncio.timeout(150):
        while await reader.keeps_up() is not keeps_up:  # noqa: ASYNC110 - it changes with what brokers answer
            await asyncio.sleep(0.05)


async def test_a_reader_that_is_not_read_does_not_keep_up(mesh: Mesh) -> None:
    async with mesh.connected() as (_, producer), Bus(mesh.kafka, client_id="reads") as bus:
        reader = bus.reader(TASKS, start="beginning")
        assert not await reader.keeps_up(), "it is not even started"
        async with reader:
            await until_it(reader, keeps_up=True)
            await send_tasks(producer, 3)
            await until_it(reader, keeps_up=False)
            assert not await reader.keeps_up(), "records wait, and nobody takes them"
            found: list[Any] = []
            while len(found) < 3:
                found += await reader.batch(5)
            assert await reader.keeps_up()
            await until_it(reader, keeps_up=True)


def test_who_works_and_who_stands_by_stay_ready_while_there_is_nothing_to_read(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    ports = quiet_ports(2)
    own = unused(kafka)
    with contextlib.ExitStack() as stack:
        for port in ports:
            env = environment(own, health__port=port, health__unread_s=UNREAD_S) | {"PYTHONWARNINGS": "error"}
            output = tmp_path / f"{port}.log"
            stack.enter_context(forked(PROGRAM, "run", "coordinator", name=output.stem, env=env, output=output))
        for port in ports:
            wait_until(lambda port=port: probe(port)[0] == 200, "ready", 60)  # type: ignore[misc]  # of a lambda with a default
        until_s = time.monotonic() + 2.5 * UNREAD_S
        while time.monotonic() < until_s:
            assert [probe(port)[0] for port in ports] == [200, 200]
            time.sleep(0.5)
