"""Which tasks fit into their batches, and which the operator allows. Pure: settings, and what is said of the batch."""

from collections.abc import Iterable, Iterator

from schemas import Task
from schemas.batch import MAX_BATCH_PARTS, MAX_BATCH_TASKS, TASKS_PER_MIB
from schemas.task import ALL_ALIKE
from trinity_bus.config import CoordinatorSettings
from trinity_bus.coordination.batches.accounts import Amount
from trinity_bus.coordination.batches.batch import NOBODY, Batch
from trinity_bus.coordination.effects import RejectionReason
from trinity_bus.coordination.limits import BATCH_SHARE, parts_allowed

type Refusal = tuple[RejectionReason, str]  # why, and in words for people


class TaskRules:
    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._max_batch_bytes = settings.max_open_bytes // BATCH_SHARE

    def refusal(self, task: Task, batch: Batch | None, use: Amount) -> Refusal | None:
        """Return what speaks against a task whose id is new; None where nothing does.

        ``batch``: that it names; None for one that is new. ``use``: what its producer takes now.
        """
        return next(self._refusals(task, batch, use), None)

    def runs_of(self, task: Task) -> int:
        return task.repeat_times or self._settings.group_size

    def size_of(self, task: Task) -> int:
        return (None if task.batch_id is None else task.batch_size) or self._settings.batch_size

    def _refusals(self, task: Task, batch: Batch | None, use: Amount) -> Iterator[Refusal]:
        settings, runs = self._settings, self.runs_of(task)
        if task.batch_size is not None and task.batch_size > settings.max_batch_tasks:
            detail = f"a batch has {settings.max_batch_tasks} tasks at most, not {task.batch_size}"
            yield RejectionReason.BATCH_TOO_LARGE, detail
        if task.is_greedy and runs > 1:
            yield RejectionReason.OVER_LIMIT, f"{runs} runs at temperature 0 {ALL_ALIKE}"
        if batch is not None:
            yield from self._does_not_fit(task, batch)
        per_part = settings.max_repeat_times_per_runner
        if per_part is not None:
            expected = self.size_of(task) if batch is None else batch.expected
            parts, allowed = -(-runs // per_part), parts_allowed(expected, settings.max_batch_parts)
            if parts > allowed:
                detail = (
                    f"{runs} runs are {parts} parts of {per_part}, and a task of a batch of {expected} has "
                    f"{allowed} parts at most; send smaller batches or raise max_repeat_times_per_runner"
                )
                yield RejectionReason.BATCH_TOO_LARGE, detail
        most_runs, longest = settings.max_repeat_times, settings.max_task_timeout_s
        if most_runs is not None and runs > most_runs:
            yield RejectionReason.OVER_LIMIT, f"{runs} runs; coordinator.max_repeat_times allows {most_runs}"
        if longest is not None and task.timeout_s is not None and task.timeout_s > longest:
            detail = f"timeout_s = {task.timeout_s:g}; coordinator.max_task_timeout_s is {longest:g}"
            yield RejectionReason.OVER_LIMIT, detail
        for most, used, what, name in (
            (settings.producer_max_open_tasks, use.count, "tasks are open", "tasks"),
            (settings.producer_max_open_bytes, use.size, "bytes of tasks are open", "bytes"),
        ):
            if most is not None and used >= most:
                producer = sender(task, batch)
                who = f"producer {producer!r}" if producer else "producers without a name"
                detail = (
                    f"{who}: {used} {what}, coordinator.producer_max_open_{name} is {most}; "
                    "send it again when some have ended"
                )
                yield RejectionReason.OVER_QUOTA, detail

    def _does_not_fit(self, task: Task, batch: Batch) -> Iterator[Refusal]:
        wrong_size = task.batch_size is not None and task.batch_size != batch.expected
        if batch.batch_type != task.batch_type or wrong_size:
            size = "any number of" if batch.expected is None else str(batch.expected)
            detail = (
                f"batch {batch.batch_id!r} has {size} {batch.batch_type} tasks, "
                f"this task says {task.batch_size or size} {task.batch_type} tasks"
            )
            yield RejectionReason.BATCH_MISMATCH, detail
        if batch.accepted == batch.expected:
            detail = f"batch {batch.batch_id!r} has its {batch.expected} tasks; name another one"
            yield RejectionReason.BATCH_FULL, detail
        if batch.size >= self._max_batch_bytes and not batch.is_open:
            detail = (
                f"batch {batch.batch_id!r} has {batch.size} bytes of tasks already, and coordinator.max_open_bytes "
                f"allows one batch {self._max_batch_bytes}: send smaller batches"
            )
            yield RejectionReason.BATCH_TOO_LARGE, detail


def sender(task: Task, batch: Batch | None) -> str:
    """Whose caps a task counts against: who it says that it is from, else the owner of the batch that it names."""
    if task.producer is not None:
        return task.producer
    return NOBODY if batch is None or batch.unnamed else batch.owner


def too_large(batches: Iterable[Batch], settings: CoordinatorSettings) -> str | None:
    """Return which batches need larger records than ``mesh.max_record_mib`` now allows, in one line; None if none does.

    A limit is kept when a task comes, so batches that were taken under a larger one stay as they are. Their FINALIZED
    could not be written; whoever finds such must not begin, for nothing of it would be lost yet.
    """
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
    parts = sum(len(result.entry.parts) for result in batch.results.values()) + sum(
        max(allowed, task.records + task.parts_left) for task in batch.open_tasks.values()
    )
    return max(batch.expected or 0, -(-parts * MAX_BATCH_TASKS // MAX_BATCH_PARTS))
