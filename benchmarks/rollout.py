"""Rollouts: tokens per second through an explorer, over tokens per second of the bare engine with the same prompts.

One process holds the engine and the explorer around it, another runs its workflows; this one holds a real broker and
plays coordinator and trainer: dispatch records in, experiences and results out. Rounds with and without the explorer
take turns on the same engine, so that both see the same machine. "Bare" is vLLM's ``AsyncLLM`` asked for the same token
ids with the same sampling; all requests at once, nothing decoded, nothing rewarded, nothing published.
"""

import asyncio
import multiprocessing
import secrets
import statistics
import time
import uuid
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop
from safetensors.torch import load_file

from benchmarks._cluster import cluster_to_measure, make_topics
from benchmarks._options import parser
from benchmarks._report import Row, report
from benchmarks._tiny_model import TINY, make_tiny_qwen3
from schemas import (
    Dispatch,
    ExplorerHeartbeat,
    Member,
    ModelVersion,
    RolloutFinished,
    Sampling,
    Task,
    WeightsSynced,
)
from schemas.topics import EXPERIENCES, EXPLORER_EVENTS, MODEL_VERSIONS, ROLLOUTS
from trinity_bus.bus import Bus, Producer, Reader, lane_partition
from trinity_bus.config import ExplorerSettings, KafkaSettings, Settings
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.inference.sampling import sampling_arguments
from trinity_bus.runners.fork_server import ForkServer
from trinity_bus.weights.link.publisher import WeightPublisher
from workers.explorer.service import ExplorerService

NAME = "explorer-0"
TASKS, GROUP, PROMPT, RESPONSE = 96, 8, 16, 64
SHORT_TASKS = 4
ROUNDS = 4
GOAL = 0.95
LIMIT_S = 120.0


def prompts(tasks: int) -> list[list[int]]:
    """Token ids, different for each task."""
    return [[3 + (task * 31 + i * 7) % 500 for i in range(PROMPT)] for task in range(tasks)]


def explorer_settings(model: str) -> ExplorerSettings:
    """Of both ways."""
    return ExplorerSettings(
        name=NAME,
        model_path=model,
        dtype="float32",
        max_model_len=PROMPT + RESPONSE,
        slots=TASKS,
        max_tokens=RESPONSE,
        seed=1,
    )


async def bare(engine: InferenceEngine, tasks: int) -> tuple[int, float]:
    """Tokens and seconds of one round without the explorer."""
    from vllm import SamplingParams
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind

    llm: Any = engine.llm
    arguments = sampling_arguments(Sampling(), GROUP, temperature=1.0, max_tokens=RESPONSE)

    async def one(prompt: list[int]) -> int:
        parameters = SamplingParams(**arguments, output_kind=RequestOutputKind.FINAL_ONLY)
        async for output in llm.generate(tokens_input(prompt), parameters, uuid.uuid4().hex):
            final = output
        return sum(len(completion.token_ids) for completion in final.outputs)

    began = time.perf_counter()
    tokens = await asyncio.gather(*(one(prompt) for prompt in prompts(tasks)))
    return sum(tokens), time.perf_counter() - began


def explorer_side(pipe: Connection, kafka: KafkaSettings, model: str) -> None:
    """Body of the explorer's process: an explorer that runs all the time, and bare rounds when asked for."""

    async def main() -> None:
        settings = Settings(kafka=kafka, explorer=explorer_settings(model))
        began = time.perf_counter()
        fork_server = ForkServer(settings)
        engine = InferenceEngine(settings.explorer)
        await engine.start()
        await fork_server.ready()
        pipe.send(time.perf_counter() - began)
        async with Bus(settings.kafka, client_id=NAME) as bus:
            exploring = asyncio.create_task(ExplorerService(settings, bus, engine, fork_server).run())
            while (tasks := await asyncio.to_thread(pipe.recv)) > 0:
                pipe.send(await bare(engine, tasks))
            exploring.cancel()
            await asyncio.wait([exploring])
        await engine.stop()
        fork_server.close()

    uvloop.run(main())


async def through_explorer(
    producer: Producer,
    events: Reader,
    explorer_incarnation: str,
    round_number: int,
    *,
    tasks: int = TASKS,
    name: str = NAME,
    traceparent: str | None = None,
) -> tuple[int, float]:
    """Tokens and seconds of one round, from the first order to the last result."""
    lane = lane_partition(name)
    began = time.perf_counter()
    for i, prompt in enumerate(prompts(tasks)):
        order = Dispatch(
            explorer=name,
            incarnation=explorer_incarnation,
            task=Task(
                task_id=f"{round_number}/{i}", workflow="math", prompt=" ".join(f"t{t}" for t in prompt), answer="t9"
            ),
            attempt=1,
            batch_id=str(round_number),
            batch_type="train",
            repeat_times=GROUP,
            timeout_s=LIMIT_S,
        )
        await producer.send(ROLLOUTS, name, order, partition=lane, traceparent=traceparent)
    results = 0
    tokens = 0
    while results < tasks:
        for received in await events.batch(LIMIT_S):
            if isinstance(received.record, RolloutFinished):
                assert received.record.status == "completed", received.record.error
                assert received.record.experience is not None
                results += 1
                tokens += received.record.response_tokens
    return tokens, time.perf_counter() - began


async def serve_weights(
    producer: Producer, events: Reader, explorer_incarnation: str, model: Path, *, name: str = NAME, epoch: int = 1
) -> None:
    """Move version 0 into the explorer, as the mesh does before anything is handed out."""
    publisher = WeightPublisher()
    checksum = publisher.stage(0, load_file(model / "model.safetensors").items())
    host, port = publisher.address
    announced = ModelVersion(
        model="policy",
        version=0,
        step=0,
        method="gloo",
        epoch=epoch,
        members=[Member(explorer=name, incarnation=explorer_incarnation, rank=1)],
        trainer="trainer-0",
        trainer_incarnation="benchmark",
        master_address=host,
        master_port=port,
        checksum=checksum,
        secret=secrets.token_hex(32),
    )
    await producer.send(MODEL_VERSIONS, announced.model, announced)
    await asyncio.to_thread(publisher.serve, announced)
    synced = False
    while not synced:
        for received in await events.batch(LIMIT_S):
            if isinstance(received.record, WeightsSynced) and received.record.explorer == name:
                assert received.record.ok, received.record.error
                synced = True
    publisher.close()


async def incarnation(events: Reader, name: str = NAME) -> str:
    """Return that of the explorer, once it has joined."""
    while True:
        for received in await events.batch(LIMIT_S):
            if isinstance(received.record, ExplorerHeartbeat) and received.record.explorer == name:
                return received.record.incarnation


async def measure(
    pipe: Connection, kafka: KafkaSettings, model: Path, rounds: int, tasks: int
) -> dict[str, list[float]]:
    """Tokens per second of each round, both ways taking turns."""
    speeds: dict[str, list[float]] = {"bare": [], "explorer": []}
    async with Bus(kafka, client_id="benchmark") as bus:
        async with bus.producer() as producer, bus.reader(EXPLORER_EVENTS, start="end") as events:
            explorer_incarnation = await incarnation(events)
            await serve_weights(producer, events, explorer_incarnation, model)
            for number in range(rounds + 1):
                pipe.send(tasks)
                timings = {
                    "bare": await asyncio.to_thread(pipe.recv),
                    "explorer": await through_explorer(producer, events, explorer_incarnation, number, tasks=tasks),
                }
                # The first round of each warms up.
                if number:
                    for way, (tokens, seconds) in timings.items():
                        speeds[way].append(tokens / seconds)
        ends = await bus.end_offsets(EXPERIENCES)
    assert sum(ends.values()) >= (rounds + 1) * tasks
    pipe.send(0)
    return speeds


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    options = arguments.parse_args()
    rounds, tasks = (1, SHORT_TASKS) if options.short else (options.rounds, TASKS)
    with cluster_to_measure() as cluster:
        kafka = cluster.unused()
        model = make_tiny_qwen3(cluster.folder / "model", seed=0, shape=TINY)
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=explorer_side, args=(theirs, kafka, str(model)), name="explorer"
        )
        uvloop.run(make_topics(kafka))
        process.start()
        # So that its death ends our waiting.
        theirs.close()
        start_s = ours.recv()
        speeds = uvloop.run(measure(ours, kafka, model, rounds, tasks))
        process.join()
    bare_speed, speed = (statistics.median(speeds[way]) for way in ("bare", "explorer"))
    ratios = [with_it / without for with_it, without in zip(speeds["explorer"], speeds["bare"], strict=True)]
    report(
        "rollout",
        f"{tasks} tasks x {GROUP} samples x up to {RESPONSE} tokens, 0.6 M parameters, one explorer on a CPU",
        [
            Row("explorer over bare engine", statistics.median(ratios), "", GOAL),
            Row("explorer", speed, "tokens/s"),
            Row("bare engine", bare_speed, "tokens/s"),
            Row("start of engine and runners", start_s, "s", better="lower"),
        ],
        options,
        notes=[f"ratio of each round: {', '.join(f'{ratio:.3f}' for ratio in ratios)}"],
    )


if __name__ == "__main__":
    main()
