"""When waits of a scheduler are over, by a clock that stands still but while it waits."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.client.test_batch_tracker import result, task
from trinity_bus.client import Scheduler, scheduler
from trinity_bus.client.results import BatchTracker, ScheduledBatch
from trinity_bus.config import Settings
from trinity_bus.errors import TimedOutError


class Timed(Scheduler):
    """At each of some moments something happens to its only batch: results come, or (-1) are taken."""

    def __init__(self, tasks: int, events: Mapping[float, Sequence[int]]) -> None:
        super().__init__(Settings())
        self.now = 0.0
        self.events = sorted(events.items())
        self.batch = ScheduledBatch(BatchTracker(1))
        self.batch.tracker.schedule([task(number) for number in range(tasks)])
        self._batches = {1: self.batch}

    def _coordinator(self) -> SimpleNamespace:  # type: ignore[override]
        return SimpleNamespace(wait_after_min_s=30.0)

    async def _change(self, pause_s: float, batches: Iterable[ScheduledBatch]) -> None:
        assert pause_s > 0
        assert list(batches) == [self.batch]
        if not self.events or self.events[0][0] > self.now + pause_s:
            self.now += pause_s
            return
        self.now, numbers = self.events.pop(0)
        for number in numbers:
            if number < 0:
                self.batch.tracker.take(self.batch.tracker.completed())
            else:
                self.batch.tracker.accept(result(number))

    def over(self, min_num: int | None, limit_s: float = 100.0) -> tuple[bool, float]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler, "awake", SimpleNamespace(now=lambda: self.now))
            return asyncio.run(self._wait(self.batch, limit_s, min_num)), self.now

    def all_over(self, limit_s: float) -> float:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler, "awake", SimpleNamespace(now=lambda: self.now))
            asyncio.run(self.wait_all(limit_s, clear_timeout_tasks=False))
        return self.now


@pytest.mark.parametrize(
    ("tasks", "events", "min_num", "over"),
    [
        (3, {10.0: [0], 20.0: [1]}, 2, (True, 50.0)),
        (3, {10.0: [0], 20.0: [1], 25.0: [2]}, 2, (True, 25.0)),
        # A minimum above what there is means all.
        (1, {1.0: [0]}, 5, (True, 1.0)),
        # Results that another caller took are not enough any more.
        (3, {1.0: [0], 20.0: [-1], 41.0: [1]}, 1, (True, 71.0)),
        (2, {80.0: [0]}, 1, (False, 100.0)),
        (2, {10.0: [0]}, None, (False, 100.0)),
        (0, {}, None, (True, 0.0)),
    ],
)
def test_a_wait_is_over_when_enough_have_been_there_or_its_time_is_up(
    tasks: int, events: Mapping[float, Sequence[int]], min_num: int | None, over: tuple[bool, float]
) -> None:
    assert Timed(tasks, events).over(min_num) == over


@given(gaps=st.lists(st.integers(1, 9), max_size=20))
def test_each_result_gives_the_others_the_whole_time_again(gaps: list[int]) -> None:
    moments = [float(sum(gaps[: number + 1])) for number in range(len(gaps))]
    events = {moment: [number] for number, moment in enumerate(moments)}
    assert Timed(len(gaps), events).all_over(10.0) == sum(gaps)
    left = Timed(len(gaps) + 1, events)
    with pytest.raises(TimedOutError):
        left.all_over(10.0)
    assert left.now == sum(gaps) + 10.0
