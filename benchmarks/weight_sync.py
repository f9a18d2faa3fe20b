"""Weight sync: from "step done" until all explorers generate with the new weights, through the real mesh.

A real broker and a real coordinator; explorers in processes of their own, each generating all the time; this process is
the trainer: it stages a version, says ``StepTrained``, serves who is named, and waits for every ``WeightsSynced``.

``staging``   packing the tensors into buckets and hashing them
``transfer``  from readiness for the first byte until the last one is there (the slowest explorer)
``verify``    hashing what has arrived (the slowest explorer)
``pause``     generation stands still: the new weights are loaded (the slowest explorer)
``control``   everything else: records through the log, decisions, waking up

The end is when the last explorer has resumed, which is when it makes its ``WeightsSynced``: that record's time, to the
millisecond, by the clock of this one machine.

The baseline is a raw gloo broadcast of the same bytes, in the same processes at the same moment, into warm memory,
verified by nobody: what the wire can do. Versions and raw broadcasts take turns.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import uvloop
from _report import Row, report
from safetensors.torch import load_file

from schemas import ModelVersion, Sampling, StepTrained, TrainerHeartbeat, WeightsSynced
from schemas.topics import EVENTS, MODEL_VERSIONS
from trinity_bus.broker import EmbeddedBroker
from trinity_bus.bus import Bus, Producer, Reader
from trinity_bus.config import BrokerSettings, ExplorerSettings, KafkaSettings, Settings
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.weights.link import join_store, serve_store
from trinity_bus.weights.publisher import WeightPublisher
from workers.coordinator.service import Coordinator
from workers.explorer.runners.nursery import Nursery
from workers.explorer.service import Explorer

# The maker of tiny models is shared with the tests; a script's own folder is all that Python looks in.
sys.path.append(str(Path(__file__).parents[1]))
from tests.support.tiny_model import SMALL, TINY, TinyShape, make_tiny_qwen3

ROUNDS = 7
LIMIT_S = 60.0
CONTROL_GOAL_S = 0.05
SHARE_GOAL = 0.7
BUSY_REQUESTS = 8
SHAPES = {"tiny": TINY, "15M": SMALL}


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of one version."""

    total: float
    staging: float
    transfer: float
    verify: float
    pause: float
    raw: float = 0.0

    @property
    def control(self) -> float:
        """What is none of the others."""
        return self.total - self.staging - self.transfer - self.verify - self.pause


def raw_group(store: Any, prefix: str, rank: int, size: int) -> Any:
    """A gloo group over all processes, as plain as can be."""
    from torch._C._distributed_c10d import ProcessGroupGloo
    from torch.distributed import PrefixStore

    return ProcessGroupGloo(PrefixStore(prefix, store), rank, size, timedelta(seconds=LIMIT_S))


def raw_broadcast(group: Any, buffer: torch.Tensor) -> float:
    """Move a buffer from rank 0 to all others; seconds from when all were ready until this one is done."""
    from torch._C._distributed_c10d import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = 0
    group.barrier().wait()
    began = time.perf_counter()
    group.broadcast([buffer], options).wait()
    return time.perf_counter() - began


def explorer_side(pipe: Connection, kafka: KafkaSettings, name: str, model: str, store_port: int) -> None:
    """Body of an explorer's process, which does what it is told through the pipe.

    Commands: ``join PREFIX RANK SIZE BYTES``, ``raw``, ``explore``, ``rest``, ``stop``.
    """

    async def main() -> None:
        settings = Settings(
            kafka=kafka,
            explorer=ExplorerSettings(
                name=name, model_path=model, dtype="float32", max_model_len=128, max_tokens=64, drain_s=0.01
            ),
        )
        nursery = Nursery(settings)
        engine = InferenceEngine(settings.explorer)
        await engine.start()
        await nursery.ready()
        pipe.send("started")
        store = join_store("127.0.0.1", store_port, timeout_s=LIMIT_S)
        group: Any = None
        buffer = torch.zeros(0, dtype=torch.uint8)
        tasks: list[asyncio.Task[Any]] = []
        async with Bus(settings.kafka, client_id=name) as bus:
            while True:
                command, *arguments = await asyncio.to_thread(pipe.recv)
                answer = 0.0
                if command == "join":
                    prefix, rank, size, nbytes = arguments
                    group = await asyncio.to_thread(raw_group, store, prefix, rank, size)
                    buffer = torch.ones(nbytes, dtype=torch.uint8)
                elif command == "raw":
                    answer = await asyncio.to_thread(raw_broadcast, group, buffer)
                elif command == "explore":
                    tasks = [asyncio.create_task(Explorer(settings, bus, engine, nursery).run())]
                    tasks += [asyncio.create_task(keep_busy(engine, i)) for i in range(BUSY_REQUESTS)]
                else:
                    for task in tasks:
                        task.cancel()
                    if tasks:
                        await asyncio.wait(tasks)
                    tasks = []
                pipe.send(answer)
                if command == "stop":
                    break
        await engine.stop()
        nursery.close()

    uvloop.run(main())


async def keep_busy(engine: InferenceEngine, number: int) -> None:
    """Generate without end."""
    while True:
        await engine.generate([3 + number, 4, 5], Sampling(), 4)


class Side:
    """This process's end of an explorer."""

    def __init__(self, kafka: KafkaSettings, name: str, model: Path, store_port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=explorer_side, args=(theirs, kafka, name, str(model), store_port))
        self.process.start()

    async def tell(self, *command: Any) -> float:
        """Send a command and wait until it is done; what it measured."""
        self.pipe.send(command)
        seconds: float = await asyncio.to_thread(self.pipe.recv)
        return seconds


class Trainer:
    """The trainer's part of the protocol, without training."""

    def __init__(self, publisher: WeightPublisher, producer: Producer, events: Reader, versions: Reader) -> None:
        self._publisher = publisher
        self._producer = producer
        self._events = events
        self._versions = versions
        self._incarnation = uuid.uuid4().hex
        self._version = -1

    async def serve(self) -> None:
        """Serve every announcement, as the trainer's service does."""
        while True:
            for received in await self._versions.batch(1.0):
                announced = received.record
                if isinstance(announced, ModelVersion) and announced.trainer_incarnation == self._incarnation:
                    threading.Thread(target=self._publisher.serve, args=(announced,), daemon=True).start()

    async def alive(self) -> None:
        """Heartbeats, so that the coordinator counts on this trainer."""
        host, port = self._publisher.address
        while True:
            beat = TrainerHeartbeat(
                trainer="trainer-0",
                incarnation=self._incarnation,
                state="ready",
                model="policy",
                step=max(self._version, 0),
                version=self._version,
                master_address=host,
                master_port=port,
            )
            await self._producer.send(EVENTS, "trainer-0", beat)
            await asyncio.sleep(0.5)

    async def step(self, tensors: dict[str, torch.Tensor], explorers: int) -> Round:
        """One version; the slowest explorer counts."""
        self._version += 1
        began_at = time.time()
        began = time.perf_counter()
        checksum = await asyncio.to_thread(self._publisher.stage, self._version, tensors.items())
        staged = time.perf_counter()
        host, port = self._publisher.address
        news = StepTrained(
            trainer="trainer-0",
            incarnation=self._incarnation,
            model="policy",
            step=self._version,
            version=self._version,
            publish=True,
            checksum=checksum,
            master_address=host,
            master_port=port,
        )
        await (await self._producer.send(EVENTS, "trainer-0", news))
        answers: dict[str, WeightsSynced] = {}
        last_at = 0.0
        while len(answers) < explorers:
            for received in await self._events.batch(LIMIT_S):
                if isinstance(received.record, WeightsSynced) and received.record.version == self._version:
                    assert received.record.ok, received.record.error
                    assert received.record.checksum == checksum
                    answers[received.record.explorer] = received.record
                    last_at = max(last_at, received.timestamp_ms / 1000)
        slowest = (max(getattr(a, name) for a in answers.values()) for name in ("transfer_s", "verify_s", "pause_s"))
        return Round(last_at - began_at, staged - began, *slowest)


async def measure(
    kafka: KafkaSettings, sides: list[Side], store: Any, tensors: dict[str, torch.Tensor], rounds: int
) -> list[Round]:
    """The rounds of one model with these explorers, in a namespace of their own."""
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    buffer = torch.ones(nbytes, dtype=torch.uint8)
    prefix, size = f"raw/{uuid.uuid4().hex}", len(sides) + 1
    joining = [side.tell("join", prefix, rank, size, nbytes) for rank, side in enumerate(sides, start=1)]
    group, *_ = await asyncio.gather(asyncio.to_thread(raw_group, store, prefix, 0, size), *joining)
    results = []
    async with contextlib.AsyncExitStack() as stack:
        bus = await stack.enter_async_context(Bus(kafka, client_id="trainer-0"))
        await bus.ensure_topics()
        coordinator_bus = await stack.enter_async_context(Bus(kafka, client_id="coordinator"))
        producer = await stack.enter_async_context(bus.producer())
        events = await stack.enter_async_context(bus.reader(EVENTS, start="end"))
        versions = await stack.enter_async_context(bus.reader(MODEL_VERSIONS, start="end"))
        publisher = WeightPublisher()
        trainer = Trainer(publisher, producer, events, versions)
        services = [
            asyncio.create_task(Coordinator(Settings(kafka=kafka), coordinator_bus).run()),
            asyncio.create_task(trainer.serve()),
            asyncio.create_task(trainer.alive()),
        ]
        await asyncio.gather(*(side.tell("explore") for side in sides))
        # The first versions make links and memory; explorers may join one after the other.
        for number in range(rounds + 2):
            result = await trainer.step(tensors, len(sides))
            raws = asyncio.gather(*(side.tell("raw") for side in sides))
            await asyncio.to_thread(raw_broadcast, group, buffer)
            raw = max(await raws)
            if number >= 2:
                results.append(replace(result, raw=raw))
        await asyncio.gather(*(side.tell("rest") for side in sides))
        for service in services:
            service.cancel()
        await asyncio.wait(services)
        publisher.close()
    return results


def rows_of(title: str, results: list[Round]) -> Iterator[Row]:
    """Medians of one configuration."""

    def median(name: str) -> float:
        return statistics.median(getattr(result, name) for result in results)

    yield Row(f"{title}: step done to all generating", median("total"), "s", better="lower")
    yield Row(f"{title}: control", median("control"), "s", CONTROL_GOAL_S, better="lower")
    yield Row(f"{title}: staging", median("staging"), "s", better="lower")
    yield Row(f"{title}: transfer", median("transfer"), "s", better="lower")
    yield Row(f"{title}: verify", median("verify"), "s", better="lower")
    yield Row(f"{title}: pause", median("pause"), "s", better="lower")
    yield Row(f"{title}: raw gloo broadcast", median("raw"), "s", better="lower")
    share = statistics.median(result.raw / result.transfer for result in results)
    yield Row(f"{title}: transfer's share of raw gloo", share, "", SHARE_GOAL)


async def run(kafka: KafkaSettings, folder: Path, shapes: dict[str, TinyShape], rounds: int) -> list[Row]:
    """All configurations: each model with one explorer, then with two."""
    store = serve_store("127.0.0.1", timeout_s=LIMIT_S)
    rows: list[Row] = []
    for name, shape in shapes.items():
        model = make_tiny_qwen3(folder / name, seed=0, shape=shape)
        tensors = load_file(model / "model.safetensors")
        for count in (1, 2):
            space = kafka.model_copy(update={"namespace": f"bench-{uuid.uuid4().hex[:8]}"})
            sides = [Side(space, f"explorer-{i}", model, store.port) for i in range(count)]
            for side in sides:
                await asyncio.to_thread(side.pipe.recv)
            results = await measure(space, sides, store, tensors, rounds)
            rows += rows_of(f"{name}, {count} explorer{'s' * (count > 1)}", results)
            await asyncio.gather(*(side.tell("stop") for side in sides))
            for side in sides:
                await asyncio.to_thread(side.process.join)
    return rows


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--models", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    arguments = parser.parse_args()
    configured = Settings()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        kafka = configured.kafka
        if kafka.bootstrap_servers is None:
            broker = BrokerSettings(port=0, data_dir=Path(folder) / "broker", cache_dir=configured.broker.cache_dir)
            kafka = stack.enter_context(EmbeddedBroker(broker)).kafka_settings(kafka)
        shapes = {name: SHAPES[name] for name in arguments.models}
        rows = uvloop.run(run(kafka, Path(folder), shapes, arguments.rounds))
    report(
        "weight_sync",
        "a version from the trainer into explorers that generate, float32, on a CPU",
        rows,
        notes=["the trainer, the explorers, their engines and the broker share this machine's cores"],
    )


if __name__ == "__main__":
    main()
