"""Weight sync: from "step done" until all explorers generate with the new weights, through the real mesh.

A real broker and a real coordinator; explorers in processes of their own, each generating all the time; this process is
the trainer: it stages a version, says ``StepTrained``, serves who is named, and waits for every ``WeightsSynced``.
Where there are more explorers than engines fit on the machine (``--engines``), all of them are *receivers*: the same
service takes the versions, but receives them in its own process, loads nothing and generates nothing; rows say so.

``staging``   packing the tensors into buckets, and hashing them beside it
``control``   from the announcement, by its record's time, to readiness for the first byte (median over explorers, too)
``meeting``   the part of it after an explorer has read the announcement (the slowest explorer)
``news``      from the trainer's "step done" until then: with the coordinator's decision, and twice through the log
``transfer``  from readiness for the first byte until the last one is there (the slowest explorer)
``verify``    hashing what has arrived (the slowest explorer)
``prepare``   loading the version beside the model that generates (the slowest explorer)
``pause``     generation stands still: the new weights take the place of the old ones (the slowest explorer)

The end is when the last explorer has resumed, which is when it makes its ``WeightsSynced``: that record's time, to the
millisecond, by the clock of this one machine.

The baseline is a raw gloo broadcast of the same bytes, in the same processes at the same moment, into warm memory,
verified by nobody: what the wire can do. Versions and raw broadcasts take turns.

The rows on deltas are of a real server and a real receiver in this process, without a mesh: bfloat16 weights of which
one in fifty changes from version to version, sent whole and as what has changed, in turns. Their gain is in the bytes:
both ends hash all of a version in any case.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import secrets
import statistics
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
from safetensors.torch import load_file

from benchmarks._cluster import Cluster, cluster_to_measure
from benchmarks._options import parser
from benchmarks._receivers import BareReceiver, Timed, follow
from benchmarks._report import Row, report
from benchmarks._sources import source
from benchmarks._tiny_model import SMALL, TINY, TinyShape, make_tiny_qwen3
from schemas import Member, ModelVersion, Sampling, StepTrained, TrainerHeartbeat, WeightsSynced
from schemas.topics import EXPLORER_EVENTS, MODEL_VERSIONS, TRAINER_EVENTS
from trinity_bus.bus import Bus, Producer, Reader
from trinity_bus.config import ExplorerSettings, KafkaSettings, Settings
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.runners.fork_server import ForkServer
from trinity_bus.weights.link.link import join_store, serve_store
from trinity_bus.weights.link.publisher import WeightPublisher
from trinity_bus.weights.memory.server import WeightServer
from trinity_bus.weights.receiver import WeightReceiver
from workers.coordinator.service import Coordinator
from workers.explorer.service import ExplorerService
from workers.trainer.publication import Publisher

ROUNDS = 5
LIMIT_S = 60.0
CONTROL_GOAL_S = 0.02
SHARE_GOAL = 0.8
PAUSE_GOAL = 0.1
PAUSE_LIMIT_S = 0.2
BUSY_REQUESTS = 8
LARGE = TinyShape(
    hidden_size=768,
    intermediate_size=3072,
    num_hidden_layers=12,
    num_attention_heads=12,
    num_key_value_heads=4,
    head_dim=64,
    vocab_size=22_528,
    initializer_range=0.02,
)
SHAPES = {"0.6M": TINY, "15M": SMALL, "150M": LARGE}
GOALS_AT = "150M"
"""The model at which shares are to reach their goals: smaller ones are done before anything is warm."""
METHODS = ("nccl", "memory")
CHANGED = 50
"""One value in so many changes from version to version."""


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of one version."""

    total: float
    staging: float
    transfer: float
    verify: float
    prepare: float
    pause: float
    meeting: float
    control: float = 0.0
    news: float = 0.0
    raw: float = 0.0


def raw_group(store: Any, prefix: str, rank: int, size: int) -> Any:
    """Return a gloo group over all processes, as plain as can be."""
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


class ExplorerSide:
    """An explorer's process, which does what it is told through a pipe.

    Args:
        kafka: The broker.
        name: The explorer's.
        model: Of its engine; None for one without.
        store_port: Of the store at which the raw group meets.
    """

    def __init__(self, kafka: KafkaSettings, name: str, model: str | None, store_port: int) -> None:
        self.settings = Settings(
            kafka=kafka,
            explorer=ExplorerSettings(
                name=name, model_path=model, dtype="float32", max_model_len=128, max_tokens=64, drain_s=0.01
            ),
        )
        self._store_port = store_port
        self._fork_server: ForkServer | None = None
        self._engine: Any = Timed(BareReceiver())
        self._group: Any = None
        self._buffer = torch.zeros(0, dtype=torch.uint8)
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Start what takes long."""
        if self.settings.explorer.model_path is not None:
            self._fork_server = ForkServer(self.settings)
            self._engine = Timed(InferenceEngine(self.settings.explorer))
            await self._engine.start()
            await self._fork_server.ready()
        self._store = join_store("127.0.0.1", self._store_port, timeout_s=LIMIT_S)

    async def handle(self, bus: Bus, command: str, *arguments: Any) -> float:
        """Do what is told: ``join PREFIX RANK SIZE BYTES``, ``raw``, ``explore``, ``first``, ``rest`` or ``stop``.

        Returns:
            Seconds of ``raw``; when the first byte of the last version could come for ``first``; else 0.
        """
        for task in self._tasks:
            if task.done():
                task.result()
        match command:
            case "join":
                prefix, rank, size, nbytes = arguments
                self._group = await asyncio.to_thread(raw_group, self._store, prefix, rank, size)
                self._buffer = torch.ones(nbytes, dtype=torch.uint8)
            case "raw":
                return await asyncio.to_thread(raw_broadcast, self._group, self._buffer)
            case "first":
                first: float = self._engine.first_byte_at
                return first
            case "explore":
                self._explore(bus)
            case _:
                for task in self._tasks:
                    task.cancel()
                if self._tasks:
                    await asyncio.wait(self._tasks)
                self._tasks = []
        return 0.0

    def _explore(self, bus: Bus) -> None:
        if self._fork_server is None:
            self._tasks = [asyncio.create_task(follow(self.settings, bus, self._engine))]
            return
        self._tasks = [asyncio.create_task(ExplorerService(self.settings, bus, self._engine, self._fork_server).run())]
        self._tasks += [asyncio.create_task(keep_busy(self._engine, i)) for i in range(BUSY_REQUESTS)]

    async def stop(self) -> None:
        """End what was started."""
        if self._fork_server is not None:
            await self._engine.stop()
            self._fork_server.close()


def explorer_side(pipe: Connection, kafka: KafkaSettings, name: str, model: str | None, store_port: int) -> None:
    """Body of an explorer's process."""

    async def main() -> None:
        side = ExplorerSide(kafka, name, model, store_port)
        await side.start()
        pipe.send("started")
        async with Bus(side.settings.kafka, client_id=name) as bus:
            command: list[Any] = []
            while command[:1] != ["stop"]:
                command = list(await asyncio.to_thread(pipe.recv))
                pipe.send(await side.handle(bus, *command))
        await side.stop()

    uvloop.run(main())


async def keep_busy(engine: Any, number: int) -> None:
    """Generate without end."""
    while True:
        await engine.generate([3 + number, 4, 5], Sampling(), 4)


class Side:
    """This process's end of an explorer."""

    def __init__(self, kafka: KafkaSettings, name: str, model: Path | None, store_port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        path = None if model is None else str(model)
        self.process = context.Process(target=explorer_side, args=(theirs, kafka, name, path, store_port))
        self.process.start()
        # So that its death ends our waiting.
        theirs.close()

    async def tell(self, *command: Any) -> float:
        """Send a command and wait until it is done; what it measured."""
        self.pipe.send(command)
        seconds: float = await asyncio.to_thread(self.pipe.recv)
        return seconds


class Trainer:
    """The trainer's part of the protocol, without training."""

    def __init__(self, publisher: Publisher, producer: Producer, events: Reader, versions: Reader) -> None:
        self._publisher = publisher
        self._producer = producer
        self._events = events
        self._versions = versions
        self._incarnation = uuid.uuid4().hex
        self._version = -1
        self.announced_at = 0.0
        """When the last version was announced, by its record."""

    async def serve(self) -> None:
        """Serve every announcement, as the trainer's service does."""
        while True:
            for received in await self._versions.batch(1.0):
                announced = received.record
                if isinstance(announced, ModelVersion) and announced.trainer_incarnation == self._incarnation:
                    self.announced_at = received.timestamp_ms / 1000
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
            await self._producer.send(TRAINER_EVENTS, "trainer-0", beat)
            await asyncio.sleep(0.5)

    async def step(self, tensors: dict[str, torch.Tensor], sides: list[Side]) -> Round:
        """One version; the slowest explorer counts."""
        self._version += 1
        began_at = time.time()
        began = time.perf_counter()
        checksum = await asyncio.to_thread(self._publisher.stage, self._version, tensors.items())
        staged = time.perf_counter()
        told_at = time.time()
        host, port = self._publisher.address
        news = StepTrained(
            trainer="trainer-0",
            incarnation=self._incarnation,
            model="policy",
            step=self._version,
            version=self._version,
            publish=True,
            method=self._publisher.method,
            checksum=checksum,
            master_address=host,
            master_port=port,
        )
        await (await self._producer.send(TRAINER_EVENTS, "trainer-0", news))
        answers: dict[str, WeightsSynced] = {}
        last_at = 0.0
        while len(answers) < len(sides):
            batch = await self._events.batch(LIMIT_S)
            assert batch, f"nobody has said anything for {LIMIT_S:g} s"
            for received in batch:
                if isinstance(received.record, WeightsSynced) and received.record.version == self._version:
                    assert received.record.ok, received.record.error
                    assert received.record.checksum == checksum
                    answers[received.record.explorer] = received.record
                    last_at = max(last_at, received.timestamp_ms / 1000)
        transfer, verify, prepare, pause, meeting = (
            max(getattr(a, name) for a in answers.values())
            for name in ("transfer_s", "verify_s", "prepare_s", "pause_s", "control_s")
        )
        firsts = [await side.tell("first") for side in sides]
        return Round(
            last_at - began_at,
            staged - began,
            transfer,
            verify,
            prepare,
            pause,
            meeting,
            control=statistics.median(firsts) - self.announced_at,
            news=statistics.median(firsts) - told_at,
        )


async def measure(
    kafka: KafkaSettings,
    sides: list[Side],
    store: Any,
    tensors: dict[str, torch.Tensor],
    *,
    rounds: int,
    method: str,
) -> list[Round]:
    """Return the rounds of one model with these explorers, in a namespace of their own."""
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
        events = await stack.enter_async_context(bus.reader(EXPLORER_EVENTS, start="end"))
        versions = await stack.enter_async_context(bus.reader(MODEL_VERSIONS, start="end"))
        publisher: Publisher = WeightServer() if method == "memory" else WeightPublisher()
        trainer = Trainer(publisher, producer, events, versions)
        services = [
            asyncio.create_task(Coordinator(Settings(kafka=kafka), coordinator_bus).run()),
            asyncio.create_task(trainer.serve()),
            asyncio.create_task(trainer.alive()),
        ]
        await asyncio.gather(*(side.tell("explore") for side in sides))
        # The first versions make links and memory; explorers may join one after the other.
        for number in range(rounds + 2):
            result = await trainer.step(tensors, sides)
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


def rows_of(title: str, results: list[Round], *, engines: bool, goals: bool) -> Iterator[Row]:
    """Medians of one configuration."""

    def median(name: str) -> float:
        return float(statistics.median(getattr(result, name) for result in results))

    yield Row(f"{title}: step done to all serving", median("total"), "s", better="lower")
    yield Row(f"{title}: announcement to first byte (control)", median("control"), "s", CONTROL_GOAL_S, better="lower")
    yield Row(f"{title}: of it, meeting the trainer", median("meeting"), "s", better="lower")
    yield Row(f"{title}: news to first byte", median("news"), "s", better="lower")
    yield Row(f"{title}: staging", median("staging"), "s", better="lower")
    yield Row(f"{title}: transfer", median("transfer"), "s", better="lower")
    yield Row(f"{title}: verify", median("verify"), "s", better="lower")
    yield Row(f"{title}: raw gloo broadcast", median("raw"), "s", better="lower")
    share = statistics.median(result.raw / result.transfer for result in results)
    yield Row(f"{title}: transfer's share of raw gloo", share, "", SHARE_GOAL if goals else None)
    if engines:
        yield Row(f"{title}: prepare", median("prepare"), "s", better="lower")
        yield Row(f"{title}: pause", median("pause"), "s", PAUSE_LIMIT_S, better="lower")
        stood = statistics.median(result.pause / result.transfer for result in results)
        yield Row(f"{title}: pause / transfer", stood, "", PAUSE_GOAL if goals else None, better="lower")


def random_tensors(shape: TinyShape) -> dict[str, torch.Tensor]:
    """Tensors of a model's sizes, for receivers, to whom their values mean nothing."""
    heads, groups = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    hidden, inner = shape.hidden_size, shape.intermediate_size
    layer = {
        "q": (heads, hidden),
        "k": (groups, hidden),
        "v": (groups, hidden),
        "o": (hidden, heads),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
        "norm": (hidden,),
    }
    sizes = {f"{i}.{name}": size for i in range(shape.num_hidden_layers) for name, size in layer.items()}
    ends = {"embedding": (shape.vocab_size, hidden), "head": (shape.vocab_size, hidden)}
    return {name: torch.rand(size) for name, size in (ends | sizes).items()}


def delta_rows(name: str, rounds: int) -> Iterator[Row]:
    """Return what it takes to bring a receiver from one version to the next, with and without deltas."""
    weights = {key: tensor.bfloat16() for key, tensor in random_tensors(SHAPES[name]).items()}
    ways = {way: (WeightServer(deltas=way == "changes"), WeightReceiver()) for way in ("whole", "changes")}
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for version in range(rounds + 1):
        for tensor in weights.values():
            tensor.view(torch.int16).view(-1)[version::CHANGED] += 1
        for way, (server, receiver) in ways.items():
            checksum = server.stage(version, weights.items())
            host, port = server.address
            ended = threading.Event()
            began = time.perf_counter()
            announced = ModelVersion(
                model="policy",
                version=version,
                step=version,
                method="memory",
                epoch=1,
                members=[Member(explorer="receiver", incarnation="life", rank=1)],
                trainer="trainer-0",
                trainer_incarnation="bench",
                master_address=host,
                master_port=port,
                checksum=checksum,
                secret=secrets.token_hex(32),
            )
            server.admit(announced)
            receiver.start(source(announced, "receiver"), lambda _, ended=ended: ended.set())  # type: ignore[misc]
            assert ended.wait(LIMIT_S), f"version {version} has not come within {LIMIT_S:g} s"
            progress = receiver.progress
            assert progress.state == "ready", progress.error
            receiver.take()
            # The first version makes memory, and has no base.
            if version:
                taken[way].append((time.perf_counter() - began, progress.received_nbytes / progress.nbytes))
    for way, (server, receiver) in ways.items():
        receiver.close()
        server.close()
        seconds, share = (statistics.median(column) for column in zip(*taken[way], strict=True))
        yield Row(f"{name}, {way} sent to a receiver: all of it", seconds, "s", better="lower")
        yield Row(f"{name}, {way} sent to a receiver: share of the bytes", share, "", better="lower")


async def run(cluster: Cluster, options: argparse.Namespace) -> list[Row]:
    """All configurations: each model with each number of explorers, by each method."""
    store = serve_store("127.0.0.1", timeout_s=LIMIT_S)
    rows: list[Row] = []
    for name in options.models:
        model = None
        tensors = random_tensors(SHAPES[name])
        if any(count <= options.engines for count in options.explorers):
            model = make_tiny_qwen3(cluster.folder / name, seed=0, shape=SHAPES[name])
            tensors = load_file(model / "model.safetensors")
        for count in options.explorers:
            engines = count <= options.engines
            # A namespace for each method: one is enough for the processes, whose services start anew.
            for method in options.methods:
                space = cluster.unused()
                sides = [Side(space, f"explorer-{i}", model if engines else None, store.port) for i in range(count)]
                for side in sides:
                    await asyncio.to_thread(side.pipe.recv)
                results = await measure(space, sides, store, tensors, rounds=options.rounds, method=method)
                what = ("explorer" if engines else "receiver") + "s" * (count > 1) + " without vLLM" * (not engines)
                title = f"{name}, {method}, {count} {what}"
                rows += rows_of(title, results, engines=engines, goals=name == GOALS_AT)
                await asyncio.gather(*(side.tell("stop") for side in sides))
                for side in sides:
                    await asyncio.to_thread(side.process.join)
        rows += await asyncio.to_thread(lambda name=name: list(delta_rows(name, options.rounds)))  # type: ignore[misc]
    return rows


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    arguments.add_argument("--models", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    arguments.add_argument("--explorers", nargs="*", type=int, default=[1, 2, 4])
    arguments.add_argument("--engines", type=int, default=2, help="most explorers with engines; 0: receivers alone")
    arguments.add_argument("--methods", nargs="*", default=["nccl"], choices=METHODS)
    options = arguments.parse_args()
    if options.short:
        # The smallest model, into a receiver without an engine, by both methods.
        options.rounds, options.models, options.explorers = 1, ["0.6M"], [1]
        options.engines, options.methods = 0, list(METHODS)
    with cluster_to_measure() as cluster:
        rows = uvloop.run(run(cluster, options))
    report(
        "weight_sync",
        "a version from the trainer into explorers that generate, float32, on a CPU",
        rows,
        options,
        notes=["the trainer, the explorers, their engines and the broker share this machine's cores"],
    )


if __name__ == "__main__":
    main()
