"""Speculative attempts beside slow ones, near a batch's end. Off unless ``straggler_factor`` is set.

When nothing of a batch is left to hand out and at least half of its tasks are finished, an attempt that takes more than
``straggler_factor`` times the median of the batch's answered parts gets a second one beside it, if another explorer has
room that nobody else wants. The first good one counts, the other is cancelled. A second attempt counts among the
``max_attempts`` tries of its part.
"""

from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination.batches.batch import Batch
from trinity_bus.coordination.batches.ledger import Ledger
from trinity_bus.coordination.batches.parts import Attempt


def slow_attempts(settings: CoordinatorSettings, ledger: Ledger, now: float) -> list[Attempt]:
    """Return attempts that deserve a second one beside them, the oldest first."""
    factor = settings.straggler_factor
    if factor is None:
        return []
    slow = []
    for batch in filter(_is_near_its_end, ledger.batches.values()):
        limit = factor * batch.durations[len(batch.durations) // 2]
        for task in batch.open_tasks.values():
            for part in task.parts:
                if len(part.running) != 1 or part.tries >= settings.max_attempts:
                    continue
                attempt = part.running[0]
                if attempt.started is not None and now - attempt.started > limit:
                    slow.append((attempt.started, task.accepted.order, attempt.number, attempt))
    return [attempt for *_, attempt in sorted(slow, key=lambda found: found[:3])]


def _is_near_its_end(batch: Batch) -> bool:
    if batch.expected is None or batch.queued or not batch.durations:
        return False
    return 2 * batch.finished >= batch.expected
