"""Turns of a run: what an attempt has completed is answered to the next one, and nothing else is."""

import asyncio

import pytest

from schemas import Sampling, Turn
from schemas.turn import chain
from tests.support.fakes.experiences import kept_of
from tests.support.fakes.turns import TurnLog, turn
from trinity_bus.chat import Completion
from trinity_bus.rollout.turns import RunTurns
from trinity_bus.rollout.workflow import RolloutContext

HOT = Sampling(temperature=1.0, seed=7)
SAID = Completion([5, 6], [-0.5, -0.25], "stop", [(0, 3)], kept=bytearray(kept_of([5, 7], [6])))


async def test_what_was_drawn_and_returned_is_answered_again_once_and_in_any_order() -> None:
    log = TurnLog()
    first = log.attempt()
    prompt = [1, 2]
    assert first.drawn(prompt, HOT, 1) is None
    first.note_drawn(prompt, HOT, 1, [SAID])
    prompt.append(3)
    assert first.result("search", {"b": 1, "a": [2]}) is None
    first.note_result("search", {"b": 1, "a": [2]}, {"found": None})
    assert log.turns == []
    await first.complete()
    await first.complete()
    await first.durable()
    assert [(one.number, one.attempt, len(one.answers)) for one in log.turns] == [(0, 1, 2)]

    second = log.attempt()
    assert second.resumed == 1
    assert second.result("search", {"a": [2], "b": 1}) == ({"found": None},)
    for other in ([1, 2], HOT, 2), ([1, 2, 3], HOT, 1), ([1, 2], HOT.model_copy(update={"seed": 8}), 1):
        assert second.drawn(*other) is None
    assert second.drawn([1, 2], HOT, 1) == [SAID]
    assert second.drawn([1, 2], HOT, 1) is None, "the same question once more is another draw"


async def test_what_another_pool_drew_is_another_question_and_turns_may_end_at_once() -> None:
    log = TurnLog()
    first = log.attempt()
    first.note_drawn([1], HOT, 1, [SAID], "judge")
    one = asyncio.ensure_future(first.complete())
    await asyncio.sleep(0)
    first.note_result("tool", 1, 1)
    await asyncio.gather(one, first.complete())
    await first.durable()
    assert [turn.number for turn in log.turns] == [0, 1]
    second = log.attempt()
    assert second.drawn([1], HOT, 1) is None
    assert second.drawn([1], HOT, 1, "judge") == [SAID]


async def test_the_turn_under_way_is_lost_and_those_before_it_are_not() -> None:
    log = TurnLog()
    first = log.attempt()
    for step in range(3):
        first.note_result("tool", step, step)
        if step < 2:
            await first.complete()
    await first.durable()
    second = log.attempt()
    assert [second.result("tool", step) for step in range(3)] == [(0,), (1,), None]
    await second.complete()
    assert len(log.turns) == 2, "turns that were completed before are not written again"
    second.note_result("tool", 2, 2)
    await second.complete()
    await second.durable()
    third = log.attempt()
    assert [third.result("tool", step) for step in range(3)] == [(0,), (1,), (2,)]
    assert [(one.number, one.attempt, one.after) for one in log.turns] == [(0, 1, 0), (1, 1, 1), (2, 2, 1)]


async def test_one_turn_at_most_is_being_written_and_a_failure_is_told_to_whoever_waits_next() -> None:
    slow, wrote = asyncio.Event(), list[int]()

    async def write(completed: Turn) -> None:
        await slow.wait()
        wrote.append(completed.number)
        if completed.number == 1:
            raise OSError("the log is full")

    turns = RunTurns([], turn(0, 1), write)
    turns.note_result("tool", 1, 1)
    await turns.complete()
    assert wrote == [], "the next one is drawn meanwhile"
    turns.note_result("tool", 2, 2)
    second = asyncio.create_task(turns.complete())
    await asyncio.sleep(0)
    assert not second.done()
    slow.set()
    await second
    assert wrote[0] == 0
    with pytest.raises(OSError, match="the log is full"):
        await turns.durable()
    await turns.durable()


async def test_a_call_is_durable_when_it_has_returned() -> None:
    order: list[str] = []

    async def write(completed: Turn) -> None:
        await asyncio.sleep(0)
        order.append(f"turn {completed.number}")

    async def tool(number: int) -> int:
        order.append(f"call {number}")
        return number

    turns = RunTurns([], turn(0, 1), write)
    ctx = RolloutContext(engine=None, tokenizer=None, repeat_times=1, turns=turns)  # type: ignore[arg-type]
    turns.note_drawn([1], HOT, 1, [SAID])
    await ctx.end_turn()
    await ctx.call("tool", tool, 1)
    assert order == ["turn 0", "call 1", "turn 1"]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        pytest.param([], [], id="none"),
        pytest.param([(1, 1, 1)], [], id="the first is gone"),
        pytest.param([(0, 1, 0), (2, 1, 1)], [(0, 1)], id="one between is gone"),
        pytest.param([(0, 1, 0), (0, 2, 0), (1, 2, 2)], [(0, 2), (1, 2)], id="who came furthest"),
        pytest.param([(0, 1, 0), (0, 2, 0)], [(0, 1)], id="who was first"),
        pytest.param([(0, 1, 0), (1, 1, 1), (1, 3, 1), (2, 3, 3)], [(0, 1), (1, 3), (2, 3)], id="two went on from one"),
    ],
)
def test_a_run_goes_on_from_one_chain(turns: list[tuple[int, int, int]], expected: list[tuple[int, int]]) -> None:
    found = chain([turn(number, attempt, after) for number, attempt, after in turns])
    assert [(one.number, one.attempt) for one in found] == expected


def test_what_json_cannot_hold_is_no_result() -> None:
    with pytest.raises(TypeError):
        TurnLog().attempt().note_result("tool", 1, object())
