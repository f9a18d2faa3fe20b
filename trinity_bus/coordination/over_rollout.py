"""Over-rollout: a batch need not wait for its last tasks.

A batch with a ``min_wait_num`` ends ``wait_after_min_s`` after so many of its tasks are finished, with what it then
has; the others are cut off. More tasks are handed out than are waited for, hence the name: the slowest few decide
nothing.
"""

import math

from schemas.record import BatchType


def enough(batch_type: BatchType, expected: int | None, over_rollout_ratio: float) -> int | None:
    """How many finished tasks are enough for a batch that does not say so itself; None: all.

    ``ceil(expected * (1 - over_rollout_ratio))`` for train batches, as in the reference; evaluation waits for all.
    """
    if batch_type == "eval" or not expected or not over_rollout_ratio:
        return None
    return math.ceil(expected * (1 - over_rollout_ratio))
