"""What the coordinator reads, on a real broker: results never wait behind tasks, and unwanted tasks stay in the log."""

import asyncio

import pytest

from schemas import ExplorerLeft, Task
from schemas.topics import EXPLORER_EVENTS, TASKS
from tests.support.mesh.mesh import unused, with_topics
from tests.support.mesh.records import record_of
from trinity_bus.config import KafkaSettings
from trinity_bus.coordination.commit_schedule import MAX_TASKS
from workers.coordinator.input_reader import InputReader

pytestmark = pytest.mark.integration

LIMIT_S = 30.0


async def test_events_come_before_tasks_and_tasks_only_when_wanted(kafka: KafkaSettings) -> None:
    settings = unused(kafka)
    count = 3 * MAX_TASKS

    async with with_topics(settings) as bus:
        async with bus.producer() as producer:
            for number in range(count):
                task = Task(task_id=f"task-{number}", workflow="math", prompt="1 + 1")
                await producer.send(TASKS, task.task_id, task)
            await producer.flush()
            await (await producer.send(EXPLORER_EVENTS, "e", ExplorerLeft(explorer="e", incarnation="i")))
        async with asyncio.timeout(LIMIT_S), InputReader(bus, {}) as intake:
            assert [received.topic for received in await intake.next(LIMIT_S, tasks=False)] == [EXPLORER_EVENTS]
            assert await intake.next(0.1, tasks=False) == []
            found: list[str] = []
            while len(found) < count:
                received = await intake.next(LIMIT_S, tasks=True)
                assert 0 < len(received) <= MAX_TASKS
                found += [record_of(item).task_id for item in received]
            assert sorted(found) == sorted(f"task-{number}" for number in range(count))
            assert await intake.next(0.0, tasks=True) == []
