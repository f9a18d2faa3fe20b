"""The bus: durable end-to-end throughput of experiences, and latency of a small record, through a real Kafka.

One producer process and one consumer process, as in the mesh: acknowledged by all replicas, idempotent, read committed.
The clock runs from the first send until both the last acknowledgement has come and the last record is decoded on the
other side. The baseline is the same transport in the same run with what one would write first: a pickled dict of lists
for each sample. Rounds of both are interleaved, so that a busy machine slows both alike, and medians are compared.
``TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS`` measures another cluster than the embedded broker.
"""

import asyncio
import pickle
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import uvloop
from msgspec.structs import replace

from benchmarks._children import LIMIT_S, child
from benchmarks._cluster import cluster_to_measure, make_topics
from benchmarks._options import parser
from benchmarks._records import equal_samples
from benchmarks._report import Row, less, report
from schemas.event import Position
from schemas.experience import ExperienceGroup
from schemas.task import Task
from schemas.topics import EXPERIENCES, TASKS
from trinity_bus.bus import Bus, Producer, Reader
from trinity_bus.config import KafkaSettings

SAMPLES, PROMPT, RESPONSE = 8, 200, 2000
TOKENS = SAMPLES * (PROMPT + RESPONSE)
GROUPS, BASELINE_GROUPS, WARM_UP, ROUNDS = 2000, 400, 200, 3
SMALL_RECORDS, SMALL_WARM_UP = 1000, 50
SMALL_GAP_S = 0.004
GOAL_MTOKENS = 6.0

type Role = Callable[[Bus, "Connection", int], Awaitable[None]]


def make_group(seed: int) -> ExperienceGroup:
    """Eight samples of 200 prompt and 2,000 response tokens."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 150_000, TOKENS, dtype=np.int32)
    logprobs = -rng.random(SAMPLES * RESPONSE, dtype=np.float32)
    return equal_samples(f"task-{seed}", PROMPT, tokens, logprobs, rng.random(SAMPLES, dtype=np.float32))


async def send_groups(bus: Bus, control: Connection, count: int) -> None:
    """Send ``count`` groups; tell when the first went out and when the last was durable."""
    groups = [make_group(seed) for seed in range(32)]
    async with bus.producer() as producer:

        async def send(number: int) -> Awaitable[Position]:
            group = replace(groups[number % len(groups)], task_id=f"task-{number}")
            return await producer.send(EXPERIENCES, group.task_id, group)

        await _send_all(control, count, send)


async def send_pickles(bus: Bus, control: Connection, count: int) -> None:
    samples = [
        {
            "task_id": f"task-{seed}",
            "tokens": sample.tokens.tolist(),
            "logprobs": sample.logprobs.tolist(),
            "mask": sample.mask.tolist(),
            "reward": sample.reward,
        }
        for seed in range(8)
        for sample in make_group(seed).samples()
    ]
    async with bus.producer() as producer:

        async def send(number: int) -> Awaitable[Position]:
            sample = samples[number % len(samples)]
            return await producer.send_raw(EXPERIENCES, f"task-{number}", pickle.dumps(sample))

        await _send_all(control, count * SAMPLES, send)


async def _send_all(control: Connection, count: int, send: Callable[[int], Awaitable[Awaitable[Position]]]) -> None:
    await _told(control)
    started = time.monotonic()
    acknowledged = [await send(number) for number in range(count)]
    for position in acknowledged:
        await position
    control.send((started, time.monotonic()))


async def read_groups(bus: Bus, control: Connection, count: int) -> None:
    async with bus.reader(EXPERIENCES, start="end") as reader:
        await _read_all(control, reader, count, lambda group: len(group.tokens))


async def read_pickles(bus: Bus, control: Connection, count: int) -> None:
    async with bus.reader(EXPERIENCES, start="end", expect=()) as reader:
        await _read_all(control, reader, count * SAMPLES, lambda value: len(pickle.loads(value)["tokens"]))


async def _read_all(control: Connection, reader: Reader, count: int, tokens_of: Callable[[Any], int]) -> None:
    control.send("ready")
    tokens = records = 0
    while records < count:
        for received in await reader.batch(LIMIT_S):
            tokens += tokens_of(received.record)
            records += 1
    control.send((time.monotonic(), tokens))


async def send_small(bus: Bus, control: Connection, count: int) -> None:
    async with bus.producer() as producer:
        # The warm-up, too, waits until it is told: the reader counts from the end of the log as it finds it.
        await _told(control)
        await _small(producer, SMALL_WARM_UP + count)
        control.send("sent")


async def _small(producer: Producer, count: int) -> None:
    for number in range(count):
        task = Task(task_id=f"task-{number}", workflow="math", data={"sent": time.monotonic()})
        await (await producer.send(TASKS, task.task_id, task))
        await asyncio.sleep(SMALL_GAP_S)


async def read_small(bus: Bus, control: Connection, count: int) -> None:
    """Read them; tell how long each took from before its send until it was decoded, in seconds."""
    async with bus.reader(TASKS, start="end") as reader:
        control.send("ready")
        latencies: list[float] = []
        while len(latencies) < SMALL_WARM_UP + count:
            received = await reader.batch(LIMIT_S)
            now = time.monotonic()
            for item in received:
                assert isinstance(item.record, Task)
                latencies.append(now - item.record.data["sent"])
        control.send(latencies[SMALL_WARM_UP:])


async def _told(control: Connection) -> None:
    control.send("ready")
    await asyncio.get_running_loop().run_in_executor(None, control.recv)


def serve(control: Connection, side: Role, settings: KafkaSettings, count: int) -> None:
    async def run() -> None:
        async with Bus(settings, client_id=side.__name__) as bus:
            await side(bus, control, count)

    uvloop.run(run())


def throughput(settings: KafkaSettings, send: Role, read: Role, count: int) -> float:
    with child(serve, read, settings, count) as reader, child(serve, send, settings, count) as sender:
        reader.hear()
        sender.hear()
        sender.pipe.send("go")
        started, acknowledged = sender.hear()
        read_at, tokens = reader.hear()
    if tokens != count * TOKENS:
        raise AssertionError(f"{tokens} tokens arrived of {count * TOKENS}")
    return float(tokens / (max(acknowledged, read_at) - started) / 1e6)


def latencies(settings: KafkaSettings, count: int) -> list[float]:
    with child(serve, read_small, settings, count) as reader, child(serve, send_small, settings, count) as sender:
        reader.hear()
        sender.hear()
        sender.pipe.send("go")
        sender.hear()
        return [1000 * seconds for seconds in reader.hear()]


def main() -> None:
    options = parser(__doc__).parse_args()
    share, rounds = (20, 1) if options.short else (1, ROUNDS)
    with cluster_to_measure() as cluster:
        settings = cluster.unused()
        uvloop.run(make_topics(settings))
        if not options.short:
            throughput(settings, send_groups, read_groups, WARM_UP)
        rates, baselines = [], []
        for _ in range(rounds):
            rates.append(throughput(settings, send_groups, read_groups, GROUPS // share))
            baselines.append(throughput(settings, send_pickles, read_pickles, BASELINE_GROUPS // share))
        small = latencies(settings, SMALL_RECORDS // share)
    rate, baseline = statistics.median(rates), statistics.median(baselines)
    hundredths = statistics.quantiles(small, n=100)
    report(
        "bus",
        f"Groups of {SAMPLES} x {PROMPT + RESPONSE:,} tokens, acks=all, idempotent, read committed",
        [
            Row("durable end to end", rate, "Mtokens/s", goal=GOAL_MTOKENS),
            Row("durable end to end, slowest round", min(rates), "Mtokens/s"),
            Row("same transport, a pickled dict of lists a sample", baseline, "Mtokens/s"),
            Row("over that baseline", rate / baseline, "x"),
            less("small record, end to end, p50", hundredths[49], "ms"),
            less("small record, end to end, p99", hundredths[98], "ms"),
        ],
        options,
        notes=(
            f"median of {rounds} rounds of {GROUPS // share:,} groups; one producer and one consumer process",
            "durable: acknowledged by every replica; as usual with Kafka, flushing to the disk is the system's",
        ),
    )


if __name__ == "__main__":
    main()
