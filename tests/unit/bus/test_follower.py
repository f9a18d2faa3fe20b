"""Following topics: what was deleted before it was read is counted, and reading that stands still is told."""

import asyncio
from typing import Any, cast

import pytest

from schemas.topics import TASKS
from tests.support.fakes.log import FakeLog, FakeReader
from trinity_bus.bus import Received, TopicFollower
from trinity_bus.bus.read.reader import Reader
from trinity_bus.errors import RecordGoneError


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


async def test_one_that_is_stopped_at_once_leaves_no_reader_open() -> None:
    reader = FakeReader(FakeLog(), [TASKS], "end", None)
    stopped: list[bool] = []

    async def stop() -> None:
        stopped.append(True)

    reader.stop = stop  # type: ignore[method-assign]
    follower = TopicFollower(lambda _: cast("Reader", reader), lambda _: None, lambda _: None)
    await follower.start()
    await follower.stop()
    assert stopped


async def test_what_was_deleted_before_it_was_read_is_counted_and_reading_that_stands_still_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted, again = list[tuple[int, object]](), asyncio.Event()
    readers = [KeptReader(3, keeps=True, gone=True), KeptReader(10, keeps=False)]

    class Counter:
        def add(self, count: int, attributes: object) -> None:
            counted.append((count, attributes))
            again.set()

    monkeypatch.setattr("trinity_bus.bus.read.follower._AGAIN_S", 0.0)
    monkeypatch.setattr("trinity_bus.bus.read.follower.RECORDS_LOST", Counter())
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
