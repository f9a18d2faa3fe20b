"""A workflow's mean reward may be NaN: an order that goes by rewards goes on without it."""

import math

from workers.taskset.orders import PassRates


def test_a_reward_that_is_no_number_ends_no_order() -> None:
    rates = PassRates(3)
    rates.saw(1, math.nan)
    assert [rates.draw(share) for share in (0.1, 0.5, 0.9)] == [0, 1, 2]
