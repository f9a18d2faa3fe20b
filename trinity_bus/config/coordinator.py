"""The section ``coordinator``: how tasks become batches, and who gets them."""

from typing import Annotated, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from schemas.batch import MAX_BATCH_PARTS, MAX_BATCH_TASKS, TASKS_PER_MIB
from schemas.record import Identifier
from schemas.task import Task
from trinity_bus.config.mesh import of_mesh
from trinity_bus.config.section import Section, conflict
from trinity_bus.config.values import Count, InstanceName, Seconds

MIN_OPEN_BYTES = 4 * Task.MAX_BYTES


class CoordinatorSettings(Section):
    """How tasks become batches, and who gets them."""

    batch_size: Annotated[int, Field(ge=1, le=MAX_BATCH_TASKS)] = 64
    """Tasks in a batch that names no size of its own."""
    group_size: Annotated[int, Field(ge=1, le=1024)] = 8
    """Samples of each task that names no number of its own: the group size of GRPO."""
    max_staleness: Annotated[int, Field(ge=0)] = 0
    """How many versions older than on-policy the weights may be that a train sample is drawn with. Unset, with
    ``synchronizer.sync_style`` ``fixed``: as old as intervals and offset make them."""
    max_inflight_batches: Count = 2
    """Train batches handed out and not yet finalized."""
    over_rollout_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a train batch's tasks that need not be waited for: it may end with the others. 0: wait for all."""
    wait_after_min_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """How long a batch that has as many tasks done as it needs still waits for the others. 0: not at all."""
    return_partial_tasks: bool = False
    """Whether a task of which only some runs are done counts, with those, when an attempt at it breaks off or its
    batch ends. Otherwise its runs are all done again, or not at all."""
    detailed_eval_stats: bool = False
    """Whether an evaluation tells of each metric the mean, maximum, minimum and standard deviation over its tasks, not
    the mean alone."""
    max_repeat_times_per_runner: Count | None = None
    """Runs of one task that one attempt does at most: larger groups are split, and may run on several explorers at
    once. Unset: groups are not split."""
    dynamic_timeout_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Limit of an attempt, in multiples of what attempts at train tasks took on average so far; never above the
    task's own. Unset: only the task's own."""
    dynamic_timeout_warmup_steps: Count = 3
    """Train batches that must have ended before the average counts."""
    straggler_factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """When nothing of a batch is left to hand out, an attempt that takes this many times the median of the batch gets
    a second one on an idle explorer; the first to end counts. Unset: never."""
    explorer_timeout_s: Seconds = 10.0
    """An explorer that says nothing for this long is dead; its tasks go to others."""
    explorer_beats_per_s: Count = 2000
    """Heartbeats of all explorers together: where there are more explorers than can send two a second each within it,
    they are told to send fewer, and count as dead after three that are missing, where that takes longer."""
    task_timeout_s: Seconds = 300.0
    """Limit of one attempt at a task that names none."""
    max_attempts: Count = 3
    """Attempts at a task before its result is a failure."""
    tick_s: Seconds = 0.25
    """How often time-outs are looked at while nothing happens."""
    name: InstanceName = "coordinator-0"
    """Of this process; several may run, one works and the others stand by. ``{host}`` in it is the host's name."""
    heartbeat_s: Seconds = 0.5
    """How often the one that works says that it lives."""
    takeover_s: Annotated[Seconds, Field(validate_default=True)] = 1.5
    """Silence after which one that stands by takes over; more than twice ``heartbeat_s``."""
    model: Identifier = of_mesh("model")
    max_record_mib: int = of_mesh("max_record_mib")
    dedup_window: Count = 100_000
    """How many ended tasks are remembered, to recognize a task id that is sent twice."""
    max_open_tasks: Count = 4096
    """Tasks taken off the topic and not yet ended, of batches that are full; beyond it, tasks wait in the log."""
    producer_max_open_tasks: Count | None = None
    """Tasks that one producer may have open; what it sends beyond is refused, with a dead letter, so that reading goes
    on for the others. Set it where several share a mesh, well below ``max_open_tasks``. Unset: any, and reading stops
    for all when ``max_open_tasks`` are open."""
    producer_max_open_bytes: Count | None = None
    """Bytes of these tasks; likewise."""
    max_task_timeout_s: Seconds | None = None
    """The longest ``timeout_s`` that a task may ask for; one with more is refused. Unset: a day."""
    max_repeat_times: Count | None = None
    """The most runs of one task; one with more is refused. Unset: 1,024."""
    max_open_bytes: Annotated[int, Field(ge=MIN_OPEN_BYTES)] = 128 << 20
    """Bytes of these tasks, as records; beyond it, tasks wait in the log too. One batch may have half of it. Named
    batches that are not full may have as much again, all together; with every bound reached it is four times as much.
    In memory a task of plain text takes twice its bytes, one of nested data up to fifteen times."""
    retention_s: Seconds = 60.0
    """How often what nobody needs any more is deleted from the log."""
    keep_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """How long it is kept all the same, seconds. Unset: tasks and experiences for a week, commands and events for a
    day."""

    @field_validator("takeover_s")
    @classmethod
    def _outlasts_heartbeats(cls, value: float, info: ValidationInfo) -> float:
        beat = info.data.get("heartbeat_s", 0.0)
        if value <= 2 * beat:
            raise PydanticCustomError(
                "too_short", "must be more than twice coordinator.heartbeat_s, which is {beat}", {"beat": beat}
            )
        return value

    @property
    def max_batch_tasks(self) -> int:
        """Return how many tasks a batch may have, so that its manifest is no larger than the cluster's records."""
        return min(MAX_BATCH_TASKS, TASKS_PER_MIB * (self.max_record_mib - 1))

    @property
    def max_batch_parts(self) -> int:
        """Return how many parts they may have together; at least two of each."""
        return MAX_BATCH_PARTS // MAX_BATCH_TASKS * self.max_batch_tasks

    @model_validator(mode="after")
    def _fits(self) -> Self:
        return self.fits_records()

    def fits_records(self) -> Self:
        """Refuse batches whose manifest could be larger than a record; asked again when ``mesh`` has said its word."""
        if self.batch_size > self.max_batch_tasks:
            raise conflict(
                f"coordinator.batch_size is {self.batch_size}, and a batch may have {self.max_batch_tasks} tasks with "
                f"records of {self.max_record_mib} MiB (mesh.max_record_mib)"
            )
        parts = self.batch_size * -(-self.group_size // (self.max_repeat_times_per_runner or self.group_size))
        if parts > self.max_batch_parts:
            raise conflict(
                f"{self.batch_size} tasks (coordinator.batch_size) of {self.group_size} runs are {parts} parts of "
                f"{self.max_repeat_times_per_runner}, and a batch has {self.max_batch_parts} at most: raise "
                "coordinator.max_repeat_times_per_runner, or lower the batch size"
            )
        return self
