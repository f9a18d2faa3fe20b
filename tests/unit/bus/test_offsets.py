"""Committed offsets: an answer that is not whole is no answer."""

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, GroupCoordinatorNotAvailableError
from aiokafka.structs import OffsetAndMetadata

from trinity_bus.bus.read.offsets import committed
from trinity_bus.errors import BusError

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


async def test_a_whole_answer_counts_and_minus_one_is_none() -> None:
    assert await ask(Admin({ONE: 5, TWO: -1})) == {ONE: 5}


async def test_a_group_that_is_not_served_or_loaded_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.bus.read.offsets._POLL_S", 0)
    assert await ask(Admin(GroupCoordinatorNotAvailableError(), {}, {ONE: 1}, {ONE: 5, TWO: 7})) == {ONE: 5, TWO: 7}


async def test_what_will_not_change_is_told() -> None:
    with pytest.raises(BusError, match="GroupAuthorizationFailedError"):
        await ask(Admin(GroupAuthorizationFailedError("g")))
    with pytest.raises(BusError, match=r"has not loaded the group after 0\.01 s"):
        await ask(Admin({}), timeout_s=0.01)
