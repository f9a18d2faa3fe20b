"""Memory while a million tasks wait in the log: what each service holds before, while they arrive, and while it works.

The coordinator takes tasks off the log only as it can use them, so its memory, and that of everybody behind it, must
not depend on how many wait. The mesh is warmed up first, until all that is bounded is full, and that takes a while: the
tasks that may be open (``max_open_tasks``), the ids of those that have ended (``dedup_window``, made smaller here), and
the results of the last 1,000 batches. What grows after that grows with what waits, or with what was ever done.
"""

import asyncio
import time
from collections.abc import Callable

import msgpack
from aiokafka import AIOKafkaProducer

from benchmarks._scheduling.mesh import LIMIT_S, Mesh
from benchmarks._scheduling.throughput import run
from schemas.topics import TASKS
from trinity_bus.bus import Bus, partition_of

SETTINGS = {"coordinator.dedup_window": "50000"}
WARM_UP = 1_100 * 64
IN_FLIGHT = 64
"""Batches of the client that wait for the broker at once."""


type Point = tuple[str, dict[str, float]]
"""When, and MiB of each role."""


async def _fill(mesh: Mesh, count: int, told: Callable[[int], None]) -> None:
    topic = TASKS.full_name(mesh.kafka.namespace)
    async with AIOKafkaProducer(
        bootstrap_servers=mesh.kafka.bootstrap_servers, acks="all", enable_idempotence=True, max_batch_size=256 << 10
    ) as producer:
        batches = [producer.create_batch() for _ in range(TASKS.partitions)]
        pending: set[asyncio.Future[object]] = set()

        async def send(partition: int) -> None:
            batch, batches[partition] = batches[partition], producer.create_batch()
            pending.add(await producer.send_batch(batch, topic, partition=partition))
            if len(pending) >= IN_FLIGHT:
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                pending.difference_update(done)

        for number in range(count):
            task_id = f"queued-{number}"
            task = {
                "schema": "task",
                "schema_version": 1,
                "task_id": task_id,
                "workflow": "math",
                "prompt": "What is 2 + 2?",
                "answer": "4",
                "repeat_times": 1,
            }
            key = task_id.encode()
            partition = partition_of(key, TASKS.partitions)
            value = msgpack.packb(task)
            if batches[partition].append(timestamp=None, key=key, value=value) is None:
                await send(partition)
                batches[partition].append(timestamp=None, key=key, value=value)
            if number % 10_000 == 9_999:
                told(number + 1)
        for partition in range(TASKS.partitions):
            await send(partition)
        await asyncio.gather(*pending)


async def memory(mesh: Mesh, bus: Bus, count: int, *, warm_up: int, work_s: float) -> list[Point]:
    async def point(when: str) -> Point:
        mesh.check()
        return when, {role: used.rss_mib for role, used in mesh.usages().items()}

    await run(mesh, bus, "warm-up", warm_up)
    points = [await point("before")]
    sent = 0

    def told(number: int) -> None:
        nonlocal sent
        sent = number

    filling = asyncio.create_task(_fill(mesh, count, told))
    deadline = time.monotonic() + max(LIMIT_S, count / 2000)
    for share in (0.25, 0.5, 0.75):
        while sent < share * count and not filling.done():
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {sent} of {count} tasks are in the log")
            await asyncio.sleep(0.05)
        points.append(await point(f"{share:.0%} queued"))
    await filling
    points.append(await point("all queued"))
    for part in (0.5, 1.0):
        await asyncio.sleep(work_s / 2)
        points.append(await point(f"{part * work_s:.0f} s of work later"))
    return points
