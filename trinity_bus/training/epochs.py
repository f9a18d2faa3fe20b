"""Which examples a step learns from: a function of how many there are, the seed and the step alone. Pure.

Epochs follow one another without an end; each has every example once, in an order of its own::

    epoch 0:  3 0 | 4 1 | 2        of 5 examples, 2 a step: step 3 takes the last of one epoch and the first of the next
    epoch 1:              1 | 0 4 | 2 3
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt


def chosen(count: int, per_step: int, *, seed: int, step: int) -> list[int]:
    """Return the places of the examples of a step, which counts from 1."""
    first = (step - 1) * per_step
    places: list[int] = []
    while len(places) < per_step:
        epoch, begin = divmod(first + len(places), count)
        places += _order(count, seed, epoch)[begin : begin + per_step - len(places)].tolist()
    return places


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(count)
