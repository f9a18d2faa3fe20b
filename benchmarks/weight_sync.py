"""Weight sync: from "step done" until all explorers generate with the new weights, through the real mesh.

A real broker and a real coordinator; explorers in processes of their own, each generating all the time; this process is
the trainer: it stages a version, says ``StepTrained``, serves who is named, and waits for every ``WeightsSynced``.
Where there are more explorers than engines fit on the machine, all of them are *receivers*: the same
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

"""

import asyncio
import contextlib
import statistics
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import uvloop
from safetensors.torch import load_file

from benchmarks._children import Side
from benchmarks._cluster import Cluster, cluster_to_measure
from benchmarks._options import REAL, parser, subjects_of
from benchmarks._report import Row, less, report
from benchmarks._tiny_model import SMALL, TINY, make_tiny_qwen3
from benchmarks._weight_sync.explorer import LIMIT_S, explorer_side, raw_broadcast, raw_group
from benchmarks._weight_sync.trainer import Round, Trainer
from schemas.topics import EXPLORER_EVENTS, MODEL_VERSIONS
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.training.ranks.launch import serve_store
from trinity_bus.weights.pull.server import WeightServer
from workers.coordinator.service import Coordinator
from workers.trainer.engines import Publisher

CONTROL_GOAL_S = 0.02
SHARE_GOAL = 0.8
PAUSE_GOAL = 0.1
PAUSE_LIMIT_S = 0.2
ALONE_GOAL_S = 1.0
"""From the step until one explorer generates with SmolLM2's new weights."""
ALONE_PAUSE_S = 0.005
SHAPES = {"0.6M": TINY, "15M": SMALL}


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int = 5
    models: tuple[str, ...] = tuple(SHAPES)
    explorers: tuple[int, ...] = (1, 2, 4)
    engines: int = 2
    """Most explorers with engines; 0: receivers alone."""
    methods: tuple[str, ...] = ("nccl",)


SHORT = Size(rounds=1, models=("0.6M",), explorers=(1,), engines=0, methods=("nccl", "memory"))
"""The smallest model, into a receiver without an engine, by both methods."""


async def measure(
    kafka: KafkaSettings, sides: list[Side], store: Any, tensors: dict[str, torch.Tensor], *, rounds: int, method: str
) -> list[Round]:
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    buffer = torch.ones(nbytes, dtype=torch.uint8)
    prefix, size = f"raw/{uuid.uuid4().hex}", len(sides) + 1
    joining = [side.tell(("join", prefix, rank, size, nbytes)) for rank, side in enumerate(sides, start=1)]
    group, *_ = await asyncio.gather(asyncio.to_thread(raw_group, store, prefix, 0, size), *joining)
    results = []
    async with contextlib.AsyncExitStack() as stack:
        bus = await stack.enter_async_context(Bus(kafka, client_id="trainer-0"))
        await bus.ensure_topics()
        coordinator_bus = await stack.enter_async_context(Bus(kafka, client_id="coordinator"))
        producer = await stack.enter_async_context(bus.producer())
        events = await stack.enter_async_context(bus.reader(EXPLORER_EVENTS, start="end"))
        versions = await stack.enter_async_context(bus.reader(MODEL_VERSIONS, start="end"))
        publisher: Publisher = WeightServer(method="memory" if method == "memory" else "gloo")
        trainer = Trainer(publisher, producer, events, versions)
        services = [
            asyncio.create_task(Coordinator(Settings(kafka=kafka), coordinator_bus).run()),
            asyncio.create_task(trainer.serve()),
            asyncio.create_task(trainer.alive()),
        ]
        await asyncio.gather(*(side.tell(("explore",)) for side in sides))
        # The first versions make links and memory; explorers may join one after the other.
        for number in range(rounds + 2):
            result = await trainer.step(tensors, sides)
            raws = asyncio.gather(*(side.tell(("raw",)) for side in sides))
            await asyncio.to_thread(raw_broadcast, group, buffer)
            raw = max(await raws)
            if number >= 2:
                results.append({**result, "raw": raw})
        await asyncio.gather(*(side.tell(("rest",)) for side in sides))
        for service in services:
            service.cancel()
        await asyncio.wait(services)
        publisher.close()
    return results


def rows_of(title: str, results: list[Round], *, engines: bool, goals: bool, alone: bool) -> Iterator[Row]:
    def median(name: str) -> float:
        return statistics.median(result[name] for result in results)

    total_goal, pause_goal = (ALONE_GOAL_S, ALONE_PAUSE_S) if goals and alone else (None, PAUSE_LIMIT_S)
    told: list[tuple[str, str, float | None]] = [
        ("step done to all serving", "total", total_goal),
        ("announcement to first byte (control)", "control", CONTROL_GOAL_S),
        ("of it, meeting the trainer", "meeting", None),
        ("news to first byte", "news", None),
        *((name, name, None) for name in ("staging", "transfer", "verify")),
        ("raw gloo broadcast", "raw", None),
        *([("prepare", "prepare", None), ("pause", "pause", pause_goal)] if engines else []),
    ]
    yield from (less(f"{title}: {what}", median(name), "s", goal) for what, name, goal in told)
    share = statistics.median(result["raw"] / result["transfer"] for result in results)
    yield Row(f"{title}: transfer's share of raw gloo", share, "", SHARE_GOAL if goals else None)
    if engines:
        stood = statistics.median(result["pause"] / result["transfer"] for result in results)
        yield less(f"{title}: pause / transfer", stood, "", PAUSE_GOAL if goals else None)


async def run(cluster: Cluster, size: Size, real: Path | None) -> list[Row]:
    store = serve_store("127.0.0.1", timeout_s=LIMIT_S)
    rows: list[Row] = []
    for name in size.models if real is None else [REAL]:
        model = real or make_tiny_qwen3(cluster.folder / name, seed=0, shape=SHAPES[name])
        tensors = load_file(model / "model.safetensors")
        for count in size.explorers:
            engines = count <= size.engines
            # A namespace for each method: one is enough for the processes, whose services start anew.
            for method in size.methods:
                space, path = cluster.unused(), str(model) if engines else None
                sides = [Side(explorer_side, space, f"explorer-{i}", path, store.port) for i in range(count)]
                for side in sides:
                    await asyncio.to_thread(side.pipe.recv)
                results = await measure(space, sides, store, tensors, rounds=size.rounds, method=method)
                what = ("explorer" if engines else "receiver") + "s" * (count > 1) + " without vLLM" * (not engines)
                title = f"{name}, {method}, {count} {what}"
                rows += rows_of(title, results, engines=engines, goals=name == REAL, alone=engines and count == 1)
                await asyncio.gather(*(side.tell(("stop",)) for side in sides))
                for side in sides:
                    await asyncio.to_thread(side.process.join)
    return rows


def main() -> None:
    options = parser(__doc__, subjects=True).parse_args()
    size = SHORT if options.short else Size()
    for subject, folder in subjects_of(options).items():
        with cluster_to_measure() as cluster:
            rows = uvloop.run(run(cluster, size, folder))
        report(
            "weight_sync",
            f"a version from the trainer into explorers that generate, {subject}, float32, on a CPU",
            rows,
            options,
            subject=subject,
            notes=["the trainer, the explorers, their engines and the broker share this machine's cores"],
        )


if __name__ == "__main__":
    main()
