"""Turns that a workflow, or a neighbour, has written so that whoever goes on from them is at it for hours.

An explorer finds the turns of earlier attempts between two heartbeats: while it looks, it says nothing. Nor does it
wait for places in the log that nobody can have written to, told by a neighbour in a heartbeat.
"""

import asyncio
import time

import pytest

from schemas import Answer, DrawnResponse, Position
from schemas.groups.trainable import Bounds
from schemas.record import MAX_COUNT
from schemas.topics import TURNS
from schemas.turn import chain, question_after
from tests.support.fakes.mesh_records import dispatch
from tests.support.fakes.turns import partial_responses, turn
from tests.support.mesh.mesh import unused, with_topics
from tests.support.narrowing import some
from trinity_bus.config import KafkaSettings
from trinity_bus.runners.partials import EarlierResponses
from workers.explorer.turns import TurnKeeper

ENOUGH_S = 2.0
"""It takes well below one second."""
MANY = 12_000


def test_turns_without_a_first_one_are_passed_over_at_once() -> None:
    turns = [turn(number, 1, after=1) for number in range(1, MANY)]
    began = time.process_time()
    assert chain(turns) == []
    assert time.process_time() - began < ENOUGH_S


def test_many_attempts_that_end_in_the_same_dead_end_are_passed_over_at_once() -> None:
    stem = [turn(number, 1, after=1) for number in range(1, MANY // 2)]
    leaves = [turn(MANY // 2, attempt, after=1) for attempt in range(2, MANY // 2)]
    began = time.process_time()
    assert chain([*stem, *leaves, turn(0, 7)]) == [turn(0, 7)]
    assert time.process_time() - began < ENOUGH_S


def more(question: str, token: int) -> Answer:
    response = DrawnResponse(
        token_ids=token.to_bytes(4, "little"), logprobs=bytes(4), finish_reason="", versions=[[0, 1]]
    )
    return Answer(question=question, responses=[response], number=0)


def test_partial_responses_that_lead_on_and_on_or_to_many_ends_are_found_at_once() -> None:
    root = at = "0" * 32
    deep, wide = list[Answer](), [more(root, token) for token in range(MANY)]
    for token in range(MANY):
        deep.append(more(at, token))
        at = question_after(at, some(deep[-1].responses)[0], 1, 0)
    wide += [more(question_after(root, some(one.responses)[0], 1, 0), 7) for one in wide]
    began = time.process_time()
    for answers, longest in (deep, MANY), (wide, 2), (deep[1:], 0):
        earlier = EarlierResponses([partial_responses(answers)], [], Bounds(MANY, MANY), 0)
        assert len(earlier.take(root, MANY + 1).whole.token_ids) == longest
    assert time.process_time() - began < ENOUGH_S


LIMIT_S = 30.0


@pytest.mark.integration
async def test_turns_where_none_can_lie_cost_an_explorer_nothing(kafka: KafkaSettings) -> None:
    settings = unused(kafka).model_copy(update={"outage_s": 5.0})
    places = [
        Position(partition=TURNS.partitions, offset=0),
        Position(partition=MAX_COUNT, offset=0),
        Position(partition=0, offset=1),
        Position(partition=0, offset=MAX_COUNT),
    ]
    async with with_topics(settings, [TURNS]) as bus, bus.producer() as producer:
        keeper = TurnKeeper(bus, producer, on_first=lambda: None)
        async with asyncio.timeout(LIMIT_S):
            for place in places:
                assert await keeper.done(dispatch(turns=place)) == ([], [], []), place
