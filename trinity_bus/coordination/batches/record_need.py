"""How large records must be for the batches that are open: ``mesh.max_record_mib`` may have been larger. Pure.

A limit is kept when a task comes, so batches that were taken under a larger one stay as they are. Their FINALIZED could
not be written; whoever finds such must not begin, for nothing of it would be lost yet, and nothing could be done.
"""

from collections.abc import Iterable

from schemas.batch import MAX_BATCH_PARTS, MAX_BATCH_TASKS, TASKS_PER_MIB
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination.batches.batch import Batch
from trinity_bus.coordination.limits import parts_allowed


def too_large(batches: Iterable[Batch], settings: CoordinatorSettings) -> str | None:
    """Return what is too large for the settings, and what to do, in one line; None if nothing is."""
    tasks = {batch.batch_id: _as_tasks(batch, settings) for batch in batches if not batch.is_open}
    large = sorted((count, name) for name, count in tasks.items() if count > settings.max_batch_tasks)
    if not large:
        return None
    most, name = large[-1]
    others = f" and {len(large) - 1} more" if len(large) > 1 else ""
    needed = 1 - (-most // TASKS_PER_MIB)
    return (
        f"mesh.max_record_mib is {settings.max_record_mib}, and the manifest of open batch {name!r}{others} may need "
        f"{needed}: nothing was changed; set it to {needed} or more until these have ended or are aborted"
    )


def _as_tasks(batch: Batch, settings: CoordinatorSettings) -> int:
    # The tasks of the batch, or more where its parts take the room of more.
    allowed = parts_allowed(batch.expected, settings.max_batch_parts)
    parts = sum(len(result.parts) for result in batch.results.values()) + sum(
        max(allowed, task.records + task.parts_left) for task in batch.open_tasks.values()
    )
    return max(batch.expected or 0, -(-parts * MAX_BATCH_TASKS // MAX_BATCH_PARTS))
