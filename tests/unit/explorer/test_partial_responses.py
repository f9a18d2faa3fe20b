"""What an explorer finds of responses that others have begun: of earlier attempts at the same runs, not too much."""

import asyncio
from typing import Any, cast

import pytest

from schemas import Answer, Dispatch, DrawnResponse, PartialResponses, Position, Task
from schemas.codec import decode, encode
from schemas.topics import TURNS
from schemas.turn import Turn
from tests.support.fakes.log import FakeBus, FakeLog
from tests.support.fakes.mesh_records import dispatch
from tests.support.fakes.turns import turn
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import until
from tests.support.narrowing import some
from trinity_bus.bus import Bus, Producer
from trinity_bus.errors import SendError
from trinity_bus.runners.partials import MAX_PARTIALS_BYTES
from trinity_bus.runners.service import key_of
from workers.explorer.turns import TurnKeeper


def answer(tokens: int) -> Answer:
    drawn = DrawnResponse(token_ids=bytes(4 * tokens), logprobs=bytes(4 * tokens), finish_reason="", versions=[[0, 1]])
    return Answer(question=f"{tokens:032x}", responses=[drawn])


def turn_of(order: Dispatch) -> Turn:
    whose = {"task_id": order.task.task_id, "explorer": order.explorer, "incarnation": order.incarnation}
    return turn(0, order.attempt).model_copy(update={**whose, "workflow": order.task.workflow})


class Here:
    def __init__(self) -> None:
        self.log = FakeLog()
        self.first = 0
        bus = FakeBus(self.log)
        self.keeper = TurnKeeper(cast("Bus", bus), cast("Producer", bus.producer()), self._count)

    def _count(self) -> None:
        self.first += 1

    def written(self) -> list[PartialResponses]:
        return [record_of(received) for received in self.log.all(TURNS)]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"attempt": 3}, 1),
        ({}, 0),
        ({"attempt": 3, "run_id_base": 1}, 0),
        ({"attempt": 3, "repeat_times": 1}, 0),
        ({"attempt": 3, "task": Task(task_id="t", workflow="other", prompt="1")}, 0),
        ({"attempt": 3, "task": Task(task_id="u", workflow="math", prompt="1")}, 0),
    ],
)
async def test_it_is_found_by_later_attempts_at_the_same_runs_alone(changes: dict[str, Any], found: int) -> None:
    here, order = Here(), dispatch()
    await here.keeper.keep_partial(order, [answer(3)])
    await here.keeper.keep_partial(order, [answer(4)])
    place = some(here.keeper.first(key_of(order)))
    assert (place.offset, here.first) == (0, 1)
    later = Dispatch(**dispatch(**changes).given() | {"turns": place})
    done = await here.keeper.done(later)
    assert [one.answers for one in done.partials] == [[answer(3)], [answer(4)]][: 2 * found]
    assert (done.turns, done.answers) == ([], [])


async def test_what_attempts_write_that_a_rollback_has_discarded_is_passed_over() -> None:
    """An attempt of the ended lineage still writes: its explorer hears late that it is stopped."""
    here = Here()
    old, new = dispatch(attempt=1), dispatch(attempt=2)
    await here.keeper.keep_partial(new, [answer(3)])
    await here.keeper.keep_partial(old, [answer(4)])
    await here.keeper.keep(old, encode(turn_of(old)))
    await here.keeper.keep(new, encode(turn_of(new)))
    since = some(here.keeper.first(key_of(new)))
    done = await here.keeper.done(dispatch(attempt=3, turns=since, discarded=1))
    assert [one.answers for one in done.partials] == [[answer(3)]]
    assert [decode(raw, Turn).attempt for raw in done.turns] == [2]


async def test_of_a_part_everything_is_found_where_a_later_attempt_at_another_part_wrote_first() -> None:
    """An order points to the first record of all attempts at a task, whichever part they were of."""
    here = Here()
    ours, other = dispatch(attempt=1), dispatch(attempt=2, run_id_base=4)
    await here.keeper.keep_partial(other, [answer(3)])
    await here.keeper.keep_partial(ours, [answer(4)])
    await here.keeper.keep(ours, encode(turn_of(ours)))
    done = await here.keeper.done(dispatch(attempt=3, turns=some(here.keeper.first(key_of(other)))))
    assert [one.answers for one in done.partials] == [[answer(4)]]
    assert [decode(raw, Turn).attempt for raw in done.turns] == [1]


@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_write_whose_request_is_cancelled_goes_on_unless_its_attempt_has_ended(
    forgotten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, order, durable = Here(), dispatch(), asyncio.Event()
    append = here.log.append

    async def slow(*given: Any) -> Position:
        await durable.wait()
        return await append(*given)

    monkeypatch.setattr(here.log, "append", slow)
    waiting = asyncio.create_task(here.keeper.keep_partial(order, [answer(200_000), answer(200_001)]))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    if forgotten:
        here.keeper.forget(key_of(order))
    durable.set()
    await until(lambda: len(here.written()) == (1 if forgotten else 2))
    await until(lambda: not here.keeper._writing)
    assert (here.keeper.first(key_of(order)) is None) == forgotten
    assert here.first == (not forgotten)
    assert bool(here.keeper._bytes) != forgotten, "nothing is left"


async def test_a_write_that_fails_is_told_to_whoever_waits() -> None:
    here = Here()
    here.log.refuse_sends = 1
    with pytest.raises(SendError):
        await here.keeper.keep_partial(dispatch(), [answer(3)])


async def test_much_at_once_is_several_records_and_too_much_of_an_attempt_is_not_written() -> None:
    here, order = Here(), dispatch()
    many = [answer(tokens) for tokens in range(60_000, 60_020)]
    await here.keeper.keep_partial(order, many)
    written = here.written()
    assert [one for record in written for one in record.answers] == many[:16]
    assert [len(record.answers) for record in written] == [2] * 8
    assert sum(len(received.raw) for received in here.log.all(TURNS)) <= MAX_PARTIALS_BYTES
