"""Following topics: one that lets records gather is asked for them all the same by whoever wants to be caught up."""

import asyncio
from typing import Any, cast

import pytest

from schemas.task import Task
from schemas.topics import TASKS
from tests.support.fakes.log import FakeLog, FakeProducer, FakeReader
from trinity_bus.bus import Received, TopicFollower
from trinity_bus.bus.reader import Reader
from trinity_bus.errors import RecordGoneError


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


class KeptReader(FakeReader):
    """Keeps up as it is told, at positions of its own; may find that what it is to read is gone."""

    def __init__(self, at: int, *, keeps: bool, gone: bool = False) -> None:
        super().__init__(FakeLog(), [TASKS], "end", None)
        self._at, self._keeps, self._gone = at, keeps, gone

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        return {("tasks", 0): self._at, ("tasks", 1): 7}

    async def keeps_up(self) -> bool:
        return self._keeps

    async def batch(self, timeout_s: float) -> list[Received[Any]]:
        if self._gone:
            raise RecordGoneError("deleted by retention")
        return await super().batch(timeout_s)


async def test_what_was_deleted_before_it_was_read_is_counted_and_reading_that_stands_still_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted, again = list[tuple[int, object]](), asyncio.Event()
    readers = [KeptReader(3, keeps=True, gone=True), KeptReader(10, keeps=False)]

    class Counter:
        def add(self, count: int, attributes: object) -> None:
            counted.append((count, attributes))
            again.set()

    monkeypatch.setattr("trinity_bus.bus.follower._AGAIN_S", 0.0)
    monkeypatch.setattr("trinity_bus.bus.follower.RECORDS_LOST", Counter())
    follower = TopicFollower(lambda _: cast("Reader", readers.pop(0)), lambda _: None, lambda _: None)
    assert not await follower.keeps_up(), "it is not even started"
    await follower.start()
    try:
        await again.wait()
        assert counted == [(7, {"messaging.destination.template": "tasks"})]
        assert not await follower.keeps_up()
    finally:
        await follower.stop()
    assert not await follower.keeps_up()
