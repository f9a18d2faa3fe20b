"""Figures by token on their way to the log: to the right sample, and never at the cost of the step."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import numpy as np
import pytest

from schemas import LeftOut, Position, StepGroup, TokenFigures
from schemas.codec import encode
from schemas.token_figures import FLOAT16
from schemas.topic import Topic
from tests.support.fakes.mesh_records import part
from tests.support.fakes.received import durable
from tests.unit.trainer.test_step_records import begun
from trinity_bus.bus import Bus
from trinity_bus.errors import BrokerUnreachableError, RecordTooLargeError, SendError
from trinity_bus.training.steps.token_figures import SampleFigures
from workers.trainer import figure_log
from workers.trainer.figure_log import FigureLog, records_of

LIMIT_S = 30.0


def of(number: int, tokens: int = 2, updates: int = 0) -> SampleFigures:
    column = np.full(tokens, number, FLOAT16).tobytes()
    return SampleFigures(number, updates, column, column)


STEP = begun(
    groups=[
        StepGroup(task_id="a", parts=[part(10, 2), part(20, 2, partition=1)]),
        StepGroup(task_id="gone", parts=[part(11, 2)]),
        StepGroup(task_id="b", parts=[part(12, 3)]),
    ],
    replayed=[StepGroup(task_id="c", parts=[part(5, 1, partition=2)])],
    left_out=[
        LeftOut(task_id="a", reason="bad_token", samples=[0, 2]),
        LeftOut(task_id="gone", reason="greedy", samples=[0, 1]),
        LeftOut(task_id="b", reason="empty", samples=[1]),
    ],
)
"""Samples that are left: a's second of each record; all of b, of which one counts all the same; c's."""


def test_a_figure_is_of_the_sample_that_was_trained_on() -> None:
    figures = [of(4, updates=1), of(0), of(1), of(2), of(5)]
    found = [(r.task_id, r.position, r.samples, r.updates_before) for r in records_of(STEP, figures)]
    assert found == [
        ("a", Position(partition=0, offset=10), [1], [0]),
        ("a", Position(partition=1, offset=20), [1], [0]),
        ("b", Position(partition=0, offset=12), [0, 2], [0, 1]),
        ("c", Position(partition=2, offset=5), [0], [0]),
    ]
    b = next(r for r in records_of(STEP, figures) if r.task_id == "b")
    third = b.of(2)
    assert third is not None
    assert third[0].tolist() == [4.0, 4.0]
    assert (b.trainer, b.run, b.step) == (STEP.trainer, STEP.run, STEP.step)


def test_what_is_too_much_for_a_record_is_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_log, "RECORD_BYTES", 64)
    figures = [of(2, tokens=10), of(3, tokens=6), of(4, tokens=100)]
    assert [r.samples for r in records_of(STEP, figures)] == [[0, 1], [2]]


class FakeProducers:
    """A bus whose producers keep what is sent, where ``opens`` and ``sends`` let them."""

    def __init__(
        self, *, opens: Callable[[], None] = lambda: None, sends: Callable[..., None] = lambda _: None
    ) -> None:
        self.sent: list[TokenFigures] = []
        self.made = 0
        self._opens, self._sends = opens, sends

    @asynccontextmanager
    async def producer(self) -> AsyncIterator["FakeProducers"]:
        self.made += 1
        self._opens()
        yield self

    async def send(self, topic: Topic, key: str, record: TokenFigures) -> Any:
        assert (topic.name, key) == ("token-figures", record.task_id)
        self._sends(record)
        encode(record)
        self.sent.append(record)
        return durable()

    @asynccontextmanager
    async def log(self) -> AsyncIterator[FigureLog]:
        async with asyncio.timeout(LIMIT_S), FigureLog(cast("Bus", self)) as figures:
            yield figures


async def turned(dropped: list[int], at_least: int) -> None:
    """Turn the loop until what waits is counted, and some more."""
    while sum(dropped) < at_least:  # noqa: ASYNC110 - the counter tells nobody
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counted: list[int] = []
    monkeypatch.setattr("workers.trainer.figure_log.TOKEN_FIGURES_DROPPED.add", counted.append)
    return counted


async def test_all_is_written_before_a_trainer_that_is_done_ends(dropped: list[int]) -> None:
    bus = FakeProducers()
    async with bus.log() as figures:
        figures.offer(STEP, [])
        assert bus.made == 0
        for _ in range(20):
            figures.offer(STEP, [of(0), of(1)])
    assert (len(bus.sent), bus.made, dropped) == (40, 1, [])


def too_large(record: TokenFigures) -> None:
    if record.task_id == "b":
        raise RecordTooLargeError("too large")


@pytest.mark.parametrize(
    ("offers", "sends", "sent", "defects"),
    [
        pytest.param([[of(0), of(1), of(2), of(5)]], lambda _: None, ["a", "a"], 0, id="the queue is full"),
        # One that no reader takes, and one that the cluster does not.
        pytest.param(
            [[of(0), of(1, tokens=TokenFigures.MAX_BYTES // 4)], [of(2), of(5)]], too_large, ["a", "c"], 0, id="large"
        ),
        # A sample that the step does not have, and one that comes twice.
        pytest.param([[of(99)], [of(0), of(0)], [of(0)]], lambda _: None, ["a"], 2, id="of no record"),
    ],
)
async def test_what_cannot_be_written_is_alone_lost_and_counted(
    *,
    offers: list[list[SampleFigures]],
    sends: Callable[[TokenFigures], None],
    sent: list[str],
    defects: int,
    dropped: list[int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if len(offers) == 1:
        monkeypatch.setattr(figure_log, "MAX_WAITING", 20)
    bus = FakeProducers(sends=sends)
    async with bus.log() as figures:
        for offer in offers:
            figures.offer(STEP, offer)
    assert [one.task_id for one in bus.sent] == sent
    assert (sum(dropped), bus.made) == (2, 1)
    assert sum("of step" in message and "a defect" in message for message in caplog.messages) == defects


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("sends", SendError("not durable")),
        ("opens", BrokerUnreachableError("nobody answers")),
        ("opens", RuntimeError("a defect")),
    ],
)
async def test_what_is_away_costs_what_waits_and_nothing_else(
    where: str, error: Exception, dropped: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    is_away = True

    def check(*_: object) -> None:
        if is_away:
            raise error

    bus = FakeProducers(**{where: check})
    async with bus.log() as figures:
        figures.offer(STEP, [of(0), of(1)])
        await turned(dropped, 2)
        assert bus.made == 1, "it is not tried again at once"
        is_away = False
        figures.offer(STEP, [of(0)])
    assert ([one.task_id for one in bus.sent], sum(dropped)) == (["a"], 2)
    assert sum("not written" in message for message in caplog.messages) == 1


async def test_a_trainer_that_fails_does_not_wait_for_figures(dropped: list[int]) -> None:
    class Stuck(FakeProducers):
        async def send(self, _topic: Topic, _key: str, _record: TokenFigures) -> Any:
            await asyncio.Event().wait()

    async def fails() -> None:
        async with Stuck().log() as figures:
            figures.offer(STEP, [of(0)])
            await asyncio.sleep(0)
            raise RuntimeError("the card is gone")

    with pytest.raises(RuntimeError, match="the card is gone"):
        async with asyncio.timeout(figure_log.DRAIN_S / 2):
            await fails()
    assert sum(dropped) == 0, "what was under way may be written or not"
