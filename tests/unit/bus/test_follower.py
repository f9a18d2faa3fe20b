"""Following topics: one that lets records gather is asked for them all the same by whoever wants to be caught up."""

import asyncio
from typing import Any, cast

from schemas.task import Task
from schemas.topics import TASKS
from tests.support.fakes.log import FakeLog, FakeProducer, FakeReader
from trinity_bus.bus import Received, TopicFollower
from trinity_bus.bus.reader import Reader


class CountingReader(FakeReader):
    """Counts the times that it is asked."""

    asked = 0

    async def batch(self, timeout_s: float) -> list[Received[Any]]:
        self.asked += 1
        return await super().batch(timeout_s)


async def test_records_gather_unless_somebody_wants_them() -> None:
    log, taken, ended, first = FakeLog(), list[str](), list[BaseException](), asyncio.Event()
    producer, reader = FakeProducer(log), CountingReader(log, [TASKS], "end", None)

    def take(received: Received[Any]) -> None:
        assert isinstance(received.record, Task)
        taken.append(received.record.task_id)
        first.set()

    follower = TopicFollower(lambda _: cast("Reader", reader), take, ended.append, pause_s=3600.0)
    await follower.start()
    try:
        await producer.send(TASKS, "a", Task(task_id="t-0", workflow="math", prompt="1"))
        await first.wait()
        for i in (1, 2):
            await producer.send(TASKS, "a", Task(task_id=f"t-{i}", workflow="math", prompt="1"))
            # As many turns of the loop as a read takes, and more.
            await asyncio.gather(*(asyncio.sleep(0) for _ in range(9)))
        assert (taken, reader.asked) == (["t-0"], 1)
        await follower.caught_up()
        assert (taken, ended) == (["t-0", "t-1", "t-2"], [])
    finally:
        await follower.stop()
