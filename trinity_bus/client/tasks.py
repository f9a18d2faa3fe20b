"""Sending tasks and examples, as many as there are, with a bound on how many are under way."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from schemas import Position, Task
from schemas.topic import Topic
from schemas.topics import TASKS
from trinity_bus.bus import Producer, partition_of

IN_FLIGHT: Final = 1000  # records that are sent but not yet known to be durable


async def send_tasks(producer: Producer, tasks: Iterable[Task], on_queued: Callable[[], None] = lambda: None) -> int:
    """Send tasks and wait until all are durable; return how many. SendError: one is not known to be.

    Those of a batch that name their producer go to one partition, that of the producer. So the coordinator accepts them
    in this order, which is that of the manifest, and of dispatch among tasks of equal length. Batches are full in the
    order in which they were submitted, however late the log is read. ``on_queued`` is called after each is handed over.
    """

    def partition(task: Task) -> int | None:
        return None if task.batch_id is None else partition_of(task.producer or task.batch_id, TASKS.partitions)

    return await send_all(producer, TASKS, ((t.task_id, t, partition(t)) for t in tasks), on_queued)


async def send_all(
    producer: Producer,
    topic: Topic,
    records: Iterable[tuple[str, Any, int | None]],
    on_queued: Callable[[], None] = lambda: None,
) -> int:
    """Send records, each with key and partition (None: that of the key), until all are durable; return how many.

    Those of a partition lie there in their order. SendError where one is not known to be durable.
    """
    pending: list[asyncio.Future[Position]] = []
    count = 0
    for key, record, partition in records:
        pending.append(asyncio.ensure_future(await producer.send(topic, key, record, partition=partition)))
        count += 1
        on_queued()
        if len(pending) >= IN_FLIGHT:
            await asyncio.gather(*pending)
            pending.clear()
    await asyncio.gather(*pending)
    return count
