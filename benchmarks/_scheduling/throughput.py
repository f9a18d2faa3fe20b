"""Tasks per second, from the first task produced to the last batch FINALIZED, and how soon a batch is FINALIZED.

The latency of a batch runs from the moment at which the broker appends an explorer's last result (the record's own
time) to the moment at which a client that reads committed records has the FINALIZED record. Saturated: all tasks
are produced as fast as the log takes them, which for its first moments keeps a core busy that the mesh could use; so
latencies are told of the time after that, too. Offered: at a fixed rate, on a schedule that does not wait for anybody.

The baseline is the same number of tasks through bare aiokafka: produced, read, and one small record written for each,
read again; no state, no transactions, the client's own defaults but for acks=all.
"""

import asyncio
import time
from dataclasses import dataclass, field

import msgpack
import msgspec
import psutil
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks._scheduling.mesh import LIMIT_S, Mesh
from schemas import Task
from schemas.codec import encode
from schemas.topics import BATCHES, EXPLORER_EVENTS, TASKS
from trinity_bus.bus import Bus, Producer, Reader
from trinity_bus.config import KafkaSettings


class BatchSeen(msgspec.Struct):
    batch_id: str
    state: str
    expected_task_count: int | None = None
    failed_task_count: int = 0


class EventSeen(msgspec.Struct):
    schema: str
    batch_id: str | None = None


_BATCH = msgspec.msgpack.Decoder(BatchSeen)
_EVENT = msgspec.msgpack.Decoder(EventSeen)


@dataclass(slots=True)
class Measured:
    tasks: int
    seconds: float
    latencies_ms: list[tuple[float, float]] = field(default_factory=list)
    """Of each batch: seconds after the last task was produced at which it was seen FINALIZED, and its latency."""
    cpu_us: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.tasks / self.seconds

    def latency(self, quantile: float, *, produced: bool = False) -> float:
        """Milliseconds; of all batches, or of those that ended when all tasks had been produced."""
        ordered = sorted(latency for after, latency in self.latencies_ms if after > 0 or not produced)
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


async def _produce(producer: Producer, run: str, count: int, rate: float | None) -> float:
    began = time.monotonic()
    for number in range(count):
        if rate is not None and (early := began + number / rate - time.monotonic()) > 0:
            # Those that are due go out together: a schedule finer than a few milliseconds is not kept by any sleep.
            await asyncio.sleep(max(early, 0.005))
        task_id = f"{run}-{number}"
        task = Task(task_id=task_id, workflow="math", prompt="What is 2 + 2?", answer="4", repeat_times=1)
        await producer.send_raw(TASKS, task_id, encode(task))
    await producer.flush()
    return time.time()


async def _watch(batches: Reader, count: int) -> dict[str, float]:
    """When each batch was seen FINALIZED, until so many tasks are in such."""
    finalized: dict[str, float] = {}
    tasks = 0
    last = time.monotonic()
    while tasks < count:
        received = await batches.batch(1.0)
        now = time.time()
        for item in received:
            batch = _BATCH.decode(item.raw)
            if batch.state == "finalized":
                finalized[batch.batch_id] = now
                tasks += batch.expected_task_count or 0
                if batch.failed_task_count:
                    raise RuntimeError(f"{batch.failed_task_count} tasks of {batch.batch_id} have failed")
        if received:
            last = time.monotonic()
        elif time.monotonic() - last > LIMIT_S:
            raise TimeoutError(f"{tasks} of {count} tasks are FINALIZED, and no more for {LIMIT_S:g} s")
    return finalized


async def _last_results(bus: Bus, start: dict[tuple[str, int], int]) -> dict[str, float]:
    last: dict[str, float] = {}
    async with bus.reader(EXPLORER_EVENTS, start=start, expect=()) as events:
        async for item in events.replay():
            event = _EVENT.decode(item.raw)
            if event.schema == "event.rollout_finished" and event.batch_id is not None:
                last[event.batch_id] = max(last.get(event.batch_id, 0.0), item.timestamp_ms / 1000)
    return last


async def run(mesh: Mesh, bus: Bus, name: str, count: int, *, rate: float | None = None) -> Measured:
    """Send ``count`` tasks, whole batches of them, and wait until all are FINALIZED."""
    ends = await bus.end_offsets(EXPLORER_EVENTS)
    start = {(EXPLORER_EVENTS.name, partition): offset for partition, offset in ends.items()}
    mine = psutil.Process()
    async with bus.producer() as producer, bus.reader(BATCHES, start="end", expect=()) as batches:
        before, client_before = mesh.usages(), sum(mine.cpu_times()[:2])
        began = time.monotonic()
        sending = asyncio.create_task(_produce(producer, name, count, rate))
        finalized = await _watch(batches, count)
        seconds = time.monotonic() - began
        after, client_after = mesh.usages(), sum(mine.cpu_times()[:2])
        produced = await sending
    mesh.check()
    last = await _last_results(bus, start)
    cpu_us = {role: 1e6 * (after[role].cpu_s - before[role].cpu_s) / count for role in before}
    cpu_us["client"] = 1e6 * (client_after - client_before) / count
    # The times of records are in whole milliseconds, cut off.
    latencies = [(seen - produced, 1000 * (seen - last[batch_id])) for batch_id, seen in finalized.items()]
    return Measured(count, seconds, latencies, cpu_us)


async def baseline(kafka: KafkaSettings, count: int, *, broker_pid: int | None) -> Measured:
    """Move as many tasks through bare aiokafka: a task out, a task in, an answer out, an answer in."""
    value = msgpack.packb({"schema": "task", "prompt": "What is 2 + 2?", "answer": "4", "workflow": "math"})
    tasks, answers = f"{kafka.namespace}.baseline-tasks", f"{kafka.namespace}.baseline-answers"
    options = {"bootstrap_servers": kafka.bootstrap_servers}
    admin = AIOKafkaAdminClient(**options)
    await admin.start()
    await admin.create_topics([NewTopic(name, num_partitions=8, replication_factor=1) for name in (tasks, answers)])
    await admin.close()
    mine, broker = psutil.Process(), None if broker_pid is None else psutil.Process(broker_pid)

    async def answer(consumer: AIOKafkaConsumer, producer: AIOKafkaProducer) -> None:
        done = 0
        while done < count:
            for records in (await consumer.getmany(timeout_ms=1000, max_records=1000)).values():
                for record in records:
                    await producer.send(answers, msgpack.packb(msgpack.unpackb(record.value)), record.key)
                done += len(records)

    async def drain(consumer: AIOKafkaConsumer) -> None:
        done = 0
        while done < count:
            done += sum(map(len, (await consumer.getmany(timeout_ms=1000, max_records=1000)).values()))

    async with (
        AIOKafkaProducer(**options, acks="all", enable_idempotence=True, linger_ms=2) as producer,
        AIOKafkaConsumer(tasks, **options, auto_offset_reset="earliest") as asked,
        AIOKafkaConsumer(answers, **options, auto_offset_reset="earliest") as answered,
    ):
        cpu, broker_cpu = sum(mine.cpu_times()[:2]), 0.0 if broker is None else sum(broker.cpu_times()[:2])
        began = time.monotonic()
        both = asyncio.gather(answer(asked, producer), drain(answered))
        for number in range(count):
            await producer.send(tasks, value, str(number).encode())
        await both
        seconds = time.monotonic() - began
        cpu_us = {"client": 1e6 * (sum(mine.cpu_times()[:2]) - cpu) / count}
        if broker is not None:
            cpu_us["broker"] = 1e6 * (sum(broker.cpu_times()[:2]) - broker_cpu) / count
    return Measured(count, seconds, cpu_us=cpu_us)
