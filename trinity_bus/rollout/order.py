"""The order in which batches are worked on."""

import math
import re

type BatchOrder = tuple[float, int]

_LEADING_DIGITS = re.compile(r"[0-9]+")


def sort_batch_id(batch_id: int | str) -> BatchOrder:
    """Sort key of a batch id: a train step's number, or a name.

    Step ``n`` comes before every name that starts with the digits ``n`` (``"n/held-out"``: the evaluation after step
    n), which come before step ``n + 1``. Names without leading digits come last.

    >>> sorted([2, "1/held-out", "final", 1], key=sort_batch_id)
    [1, '1/held-out', 2, 'final']
    """
    if isinstance(batch_id, int):
        return batch_id, 0
    digits = _LEADING_DIGITS.match(batch_id)
    return (int(digits[0]), 1) if digits else (math.inf, 1)
