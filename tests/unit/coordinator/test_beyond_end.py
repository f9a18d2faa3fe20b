"""Positions that the log does not reach: what goes on by itself, and what the operator decides."""

from collections.abc import Mapping

import pytest

from schemas.topic import Topic
from schemas.topics import COMMANDS, EXPLORER_EVENTS, TASKS
from trinity_bus.bus.read.offsets import BeyondEnd, Readable, readable
from trinity_bus.errors import ProducerFencedError
from workers.coordinator.input_reader import resolved, undecided


class Log:
    """Stands for a bus: partition 0 of each topic holds what it was made with, the others nothing."""

    def __init__(self, held: Mapping[str, tuple[int, int]]) -> None:
        self._held = held

    async def beginning_offsets(self, topic: Topic) -> dict[int, int]:
        return {0: self._held.get(topic.name, (0, 0))[0]}

    async def end_offsets(self, topic: Topic) -> dict[int, int]:
        return {0: self._held.get(topic.name, (0, 0))[1]}


async def ask(held: Mapping[str, tuple[int, int]], positions: Mapping[str, int]) -> Readable:
    named = {(topic, 0): offset for topic, offset in positions.items()}
    return await readable(Log(held), (TASKS, COMMANDS, EXPLORER_EVENTS), named)


async def test_positions_are_moved_into_the_log_and_it_is_said_what_was_wrong() -> None:
    found = await ask(
        {"tasks": (5, 9), "commands": (0, 3), "explorer-events": (0, 7)},
        {"tasks": 2, "commands": 3, "explorer-events": 8},
    )
    assert found.positions == {("tasks", 0): 5, ("commands", 0): 3, ("explorer-events", 0): 7}
    assert found.lost == 3
    assert [str(one) for one in found.beyond] == ["explorer-events/0 ends at 7, and 8 was to be read next"]
    assert await ask({}, {}) == Readable({}, 0, [])


async def test_events_and_commands_go_on_at_the_end_and_few_tasks_are_read_again_and_many_are_the_operators(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lives = iter(range(20))

    async def live() -> None:
        if next(lives, None) is None:
            raise ProducerFencedError("the operator has decided")

    held = {"tasks": (10, 110), "commands": (0, 3), "explorer-events": (0, 7)}
    few = await ask(held, {"tasks": 500, "commands": 50, "explorer-events": 60})
    assert await resolved(few, 100, live, 0) == {("tasks", 0): 10, ("commands", 0): 3, ("explorer-events", 0): 7}
    many = await ask(held | {"tasks": (10, 111)}, {"tasks": 500})
    assert undecided(many.beyond, 100) == [BeyondEnd("tasks", 0, 500, 10, 111)]
    caplog.clear()
    with pytest.raises(ProducerFencedError):
        await resolved(many, 100, live, 0)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "trinity-bus positions resolve --tasks beginning|end" in said
    assert "tasks/0 ends at 111, and 500 was to be read next" in said
