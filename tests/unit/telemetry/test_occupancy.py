import pytest

from trinity_bus.telemetry.metrics import Occupancy


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_each_unit_counts_in_the_state_that_it_is_in() -> None:
    clock = Clock()
    slots = Occupancy("idle", 3, clock)
    clock.now += 2
    with slots.unit("waiting") as one:
        clock.now += 1
        with slots.unit("waiting"):
            clock.now += 1
            one.move("rolling_out")
            clock.now += 4
    clock.now += 1
    assert slots.seconds() == {"idle": 3 * 2 + 2 * 1 + 1 * 5 + 3 * 1, "waiting": 1 + 2 + 4, "rolling_out": 4}
    assert sum(slots.seconds().values()) == 3 * 9, "no second of any unit is lost or counted twice"


def test_none_is_idle_where_more_work_than_there_are_and_a_block_that_raises_is_left() -> None:
    clock = Clock()
    engine = Occupancy("idle", clock=clock)
    with engine.unit("training"), engine.unit("training"):
        clock.now += 2
    assert engine.seconds() == {"idle": 0, "training": 4}
    clock = Clock()
    engine = Occupancy("idle", clock=clock)

    def train() -> None:
        with engine.unit("training"):
            clock.now += 2
            raise RuntimeError

    with pytest.raises(RuntimeError):
        train()
    clock.now += 1
    assert engine.seconds() == {"idle": 1, "training": 2}
