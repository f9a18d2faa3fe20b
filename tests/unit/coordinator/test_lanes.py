import pytest

from schemas.topic import Topic
from schemas.topics import ROLLOUTS
from trinity_bus.bus import lane_partition
from trinity_bus.errors import BusError
from workers.coordinator.log_facts import ASK_S, Lanes

NAME = "explorer-0"
OWN = lane_partition(NAME)
NEW = ROLLOUTS.partitions


class FakeBrokers:
    """FAKE: a bus that counts how often it is asked, and may not answer."""

    def __init__(self, partitions: int = ROLLOUTS.partitions) -> None:
        self.partitions = partitions
        self.asked = 0
        self.away = False

    async def beginning_offsets(self, topic: Topic) -> dict[int, int]:
        raise NotImplementedError

    async def end_offsets(self, topic: Topic) -> dict[int, int]:
        assert topic is ROLLOUTS
        self.asked += 1
        if self.away:
            raise BusError("away")
        return dict.fromkeys(range(self.partitions), 0)


@pytest.mark.parametrize("told", [None, 0, ROLLOUTS.partitions - 1])
async def test_no_broker_is_asked_of_a_lane_that_there_always_is(told: int | None) -> None:
    brokers = FakeBrokers()
    assert await Lanes(brokers, lambda: 0.0).of(NAME, told) == (OWN if told is None else told)
    assert brokers.asked == 0


async def test_a_lane_that_is_new_is_asked_of_once() -> None:
    brokers = FakeBrokers(NEW + 4)
    lanes = Lanes(brokers, lambda: 0.0)
    assert [await lanes.of(NAME, NEW + number) for number in (0, 3, 1)] == [NEW, NEW + 3, NEW + 1]
    assert brokers.asked == 1


async def test_orders_to_one_whose_lane_is_nowhere_hold_up_nobody_and_brokers_are_asked_again_later() -> None:
    brokers, now = FakeBrokers(), 0.0
    lanes = Lanes(brokers, lambda: now)
    assert [await lanes.of(NAME, 1 << 40) for _ in range(100)] == [OWN] * 100
    assert brokers.asked == 1
    now, brokers.away = ASK_S, True
    brokers.partitions = NEW + 1
    assert await lanes.of(NAME, NEW) == OWN, "they do not say"
    now, brokers.away = 2 * ASK_S, False
    assert await lanes.of(NAME, NEW) == NEW, "it is there by now"
