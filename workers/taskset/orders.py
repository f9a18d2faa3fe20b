"""In which order the lines of a set are used: place 0, 1, 2 ... to a line. Pure.

==================  ==================================================================================================
order               place ``k`` of ``n`` lines
==================  ==================================================================================================
``sequential``      line ``k mod n``: epoch after epoch as they lie in the files
``shuffled``        each epoch has all lines once, in an order of its own that the seed fixes
``random``          any line, whatever came before
``easy_to_hard``    each epoch has all lines once, the least difficult first; equals are shuffled
``by_difficulty``   any line, the likelier the less certain its outcome is: see :class:`PassRates`
==================  ==================================================================================================

The first four follow from files, seed and ``k`` alone, so a restart needs to know nothing but how many were produced.
The last hangs on results too; what was produced is not drawn again all the same, because each place is used once.
"""

import math
import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from trinity_bus.config.coordinator import OrderName

# Place to the line, and what tells this use of the line from every other: its epoch, or where lines are drawn anew each
# time, the place.
type Order = Callable[[int], tuple[int, int]]

# Of a line whose runs all did equally well, beside 1 of one of which half the runs did well: it may change.
LEAST_WEIGHT: Final = 0.05


class PassRates:
    """How well each line was answered last, and which to draw by that.

    A group of runs that all earn the same teaches nothing (its advantages are zero), and one with as many good ones as
    bad ones the most: with ``p`` the mean reward, the variance of a reward of 0 or 1 is ``p (1 - p)``. A line is drawn
    in proportion to ``max(4 p (1 - p), LEAST_WEIGHT)``; one that was not answered yet counts as a half.
    """

    def __init__(self, lines: int) -> None:
        self._weights = np.ones(lines)
        self._sums: np.ndarray[tuple[int], np.dtype[np.float64]] | None = None

    def saw(self, line: int, reward: float) -> None:
        """Note the mean reward of a line's runs; beyond 0 and 1 it counts as these, and NaN says nothing."""
        if math.isnan(reward):
            return
        p = min(max(reward, 0.0), 1.0)
        self._weights[line] = max(4 * p * (1 - p), LEAST_WEIGHT)
        self._sums = None

    def draw(self, share: float) -> int:
        """Return the line at a share, from 0 to below 1, of all weights."""
        if self._sums is None:
            self._sums = np.cumsum(self._weights)
        return int(np.searchsorted(self._sums, share * self._sums[-1], side="right"))


def make_order(name: OrderName, count: int, seed: int, difficulties: Sequence[float | str], rates: PassRates) -> Order:
    """Return an order of so many lines; ``difficulties`` for ``easy_to_hard``, ``rates`` for ``by_difficulty``."""

    def by_epoch(lines: Callable[[int], Sequence[int]]) -> Order:
        def order(place: int) -> tuple[int, int]:
            epoch, index = divmod(place, count)
            return lines(epoch)[index], epoch

        return order

    @lru_cache(maxsize=2)
    def rising(epoch: int) -> Sequence[int]:
        return sorted(shuffled(count, seed, epoch), key=lambda line: difficulties[line])

    def share(place: int) -> float:
        return random.Random(f"{seed}/{place}").random()  # noqa: S311 - what a seed repeats is the point

    orders: dict[OrderName, Order] = {
        "sequential": by_epoch(lambda _: range(count)),
        "shuffled": by_epoch(lambda epoch: shuffled(count, seed, epoch)),
        "random": lambda place: (int(share(place) * count), place),
        "easy_to_hard": by_epoch(rising),
        "by_difficulty": lambda place: (rates.draw(share(place)), place),
    }
    return orders[name]


@lru_cache(maxsize=32)
def shuffled(count: int, seed: int, epoch: int) -> Sequence[int]:
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311 - likewise
    return order


@lru_cache(maxsize=8)
def turns(shares: tuple[int, ...]) -> Sequence[int]:
    """Return one round of several sets that take turns: each as often as its share, as evenly as can be.

    Smooth weighted round-robin: at each turn all gain their share, and who has most is chosen and pays the sum.

    >>> turns((3, 1))
    [0, 0, 1, 0]
    """
    gained = [0] * len(shares)
    chosen = []
    for _ in range(sum(shares)):
        gained = [have + share for have, share in zip(gained, shares, strict=True)]
        first = max(range(len(shares)), key=lambda i: gained[i])
        gained[first] -= sum(shares)
        chosen.append(first)
    return chosen
