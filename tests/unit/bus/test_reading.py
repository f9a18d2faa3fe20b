import asyncio
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, GroupCoordinatorNotAvailableError
from aiokafka.structs import OffsetAndMetadata
from hypothesis import given
from hypothesis import strategies as st

from schemas.topics import TASKS
from tests.support.fakes.log import FakeLog, FakeReader
from trinity_bus.bus import Received, TopicFollower
from trinity_bus.bus.read.offsets import HELD_S, Stalls, Standing, committed
from trinity_bus.bus.read.positions import JUMP_BYTES, Cursor
from trinity_bus.bus.read.reader import Reader
from trinity_bus.errors import BusError, RecordGoneError


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


async def test_what_was_deleted_unread_is_counted_and_a_stall_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
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


@given(
    visible=st.sets(st.integers(0, 60), min_size=1),
    wanted=st.sets(st.integers(0, 60), min_size=1),
    size=st.sampled_from([10, JUMP_BYTES // 4, JUMP_BYTES]),
)
def test_everything_wanted_is_found_or_reported_missing(visible: set[int], wanted: set[int], size: int) -> None:
    cursor = Cursor(sorted(wanted))
    found: list[int] = []
    missed: int | None = None
    position, reads = cursor.next, 0
    while not cursor.done and missed is None:
        # A fetch brings two visible records, or moves over a stretch that shows none.
        batch = sorted(offset for offset in visible if offset >= position)[:2]
        found += [offset for offset in batch if cursor.take(offset, size)]
        position = batch[-1] + 1 if batch else 61
        reads += 1
        missed = cursor.missed(position)
        if missed is None:
            position = cursor.jump(position) or position
        assert reads <= 62, "it comes to an end"
    if wanted <= visible:
        assert missed is None
        assert found == sorted(wanted)
    else:
        assert missed == min(wanted - visible)
        assert found == sorted(offset for offset in wanted if offset < missed)


def test_only_gaps_that_cost_more_than_a_request_are_jumped() -> None:
    cursor = Cursor([0, 10, 5000])
    assert cursor.jump(0) is None
    assert cursor.take(0, 1000)
    assert cursor.jump(1) is None, "nine records of a kilobyte are in the fetch anyway"
    assert not cursor.take(1, 1000)
    assert cursor.take(10, 1000)
    assert cursor.jump(11) == 5000
    assert cursor.take(5000, 1000)
    assert cursor.done
    assert cursor.missed(6000) is None
    assert cursor.jump(6000) is None


FINE = [("tasks", 8, 8)]


def standing(position: int, stable_end: int | None, end: int | None) -> list[Standing]:
    return [Standing("tasks", 3, position, stable_end, end)]


def test_a_transaction_that_stays_open_holds_its_partition_and_is_told_once() -> None:
    stalls = Stalls()
    assert not stalls.look(0, standing(7, 7, 9), FINE), "it may end in a moment"
    assert stalls.look(HELD_S, standing(7, 7, 12), FINE)
    assert stalls.look(HELD_S + 1, standing(7, 7, 13), FINE)
    (line,) = stalls.news()
    assert line.startswith("tasks/3: records from 7 on wait for a transaction")
    assert stalls.news() == []
    assert not stalls.look(HELD_S + 2, standing(7, 13, 13), FINE)
    assert not stalls.look(HELD_S + 3, standing(13, 13, 14), FINE), "another one has just begun"


def test_what_is_not_read_yet_holds_nothing_and_partitions_that_nobody_reads_are_told_once() -> None:
    stalls = Stalls()
    for second in range(20):
        for one in (standing(second, second, second + 1), standing(3, 7, 9), standing(3, None, None)):
            assert not stalls.look(second, one, FINE)
    stalls = Stalls()
    for second in range(3):
        assert stalls.look(second, [], [("tasks", 10, 8)])
    (line,) = stalls.news()
    assert line.startswith("tasks has 10 partitions and needs exactly 8: nobody reads what is in the others")


ONE, TWO = TopicPartition("explorer-events", 0), TopicPartition("explorer-events", 1)


class Admin:
    """Stands for the client library's admin client: gives, or raises, what it was made with, the last for ever."""

    def __init__(self, *answers: dict[TopicPartition, int] | Exception) -> None:
        self._answers = list(answers)

    async def list_consumer_group_offsets(
        self, group: str, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        assert (group, partitions) == ("g", [ONE, TWO])
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {position: OffsetAndMetadata(offset, "") for position, offset in answer.items()}


async def ask(admin: Admin, timeout_s: float = 10.0) -> dict[TopicPartition, int]:
    return await committed(admin, "g", [ONE, TWO], timeout_s)


async def test_a_whole_answer_counts_and_what_may_change_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await ask(Admin({ONE: 5, TWO: -1})) == {ONE: 5}
    monkeypatch.setattr("trinity_bus.bus.read.offsets._POLL_S", 0)
    assert await ask(Admin(GroupCoordinatorNotAvailableError(), {}, {ONE: 1}, {ONE: 5, TWO: 7})) == {ONE: 5, TWO: 7}
    with pytest.raises(BusError, match="GroupAuthorizationFailedError"):
        await ask(Admin(GroupAuthorizationFailedError("g")))
    with pytest.raises(BusError, match=r"has not loaded the group after 0\.01 s"):
        await ask(Admin({}), timeout_s=0.01)
