"""The sections ``coordinator`` and ``taskset``: how tasks come, become batches, and who gets them."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.batch import MAX_BATCH_PARTS, MAX_BATCH_TASKS, TASKS_PER_MIB
from schemas.record import Identifier
from schemas.task import Task
from trinity_bus.config.mesh import of_mesh
from trinity_bus.config.values import Count, ExistingFile, InstanceName, Seconds, Section, conflict

MIN_OPEN_BYTES = 4 * Task.MAX_BYTES


class CoordinatorSettings(Section):
    """How tasks become batches, and which explorers get them."""

    batch_size: Annotated[int, Field(ge=1, le=MAX_BATCH_TASKS)] = 64
    """Tasks of a batch that sets no size."""
    group_size: Annotated[int, Field(ge=1, le=1024)] = 8
    """Samples of each task that sets no number: GRPO's group size."""
    max_staleness: Annotated[int, Field(ge=0)] = 0
    """How many versions a train sample's weights may be older than on-policy. Unset, with ``synchronizer.sync_style``
    ``fixed``: as intervals and offset require."""
    max_inflight_batches: Count = 2
    """Train batches that are dispatched and not finalized."""
    over_rollout_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a train batch's tasks that it may end without. 0: wait for all."""
    wait_after_min_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """How long a batch with enough finished tasks waits for the others. 0: not at all."""
    return_partial_tasks: bool = False
    """Whether a task counts with its finished runs if an attempt fails partly or its batch ends."""
    detailed_eval_stats: bool = False
    """Whether an evaluation reports mean, maximum, minimum and deviation of each metric, not the mean alone."""
    max_repeat_times_per_runner: Count | None = None
    """Maximum runs in one attempt: larger groups are split over several. Unset: groups are not split."""
    dynamic_timeout_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Timeout of an attempt as a multiple of the mean duration at train tasks, up to the task's own. Unset: that."""
    dynamic_timeout_warmup_steps: Count = 3
    """Train batches that must have ended before that mean is used."""
    longest_first: bool = True
    """Whether a batch's tasks are dispatched by the expected length of their responses, longest first, and explorers
    share expected tokens. Off: in the order of submission, and explorers share attempts."""
    straggler_factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Once every part of a batch is dispatched, an attempt that takes this many times the batch's median gets a second
    one on an idle explorer; the first to finish counts. Unset: never."""
    explorer_timeout_s: Seconds = 10.0
    """An explorer that is silent for this long is dead; others get its tasks."""
    explorer_beats_per_s: Count = 2000
    """Maximum heartbeats of all explorers together. Larger fleets send fewer than two a second each, and an explorer is
    dead after three missing ones if that takes longer than ``explorer_timeout_s``."""
    task_timeout_s: Seconds = 300.0
    """Timeout of one attempt at a task that sets none."""
    max_attempts: Count = 3
    """Attempts at a task before it fails."""
    tick_s: Seconds = 0.25
    """How often timeouts are checked while nothing happens."""
    name: InstanceName = "coordinator-0"
    """Name of this process. Several may run; one leads. ``{host}`` is replaced by the host's name."""
    heartbeat_s: Seconds = 0.5
    """Interval of the leader's heartbeats."""
    takeover_s: Seconds = 1.5
    """Silence after which a standby takes over; more than twice ``heartbeat_s``."""
    model: Identifier = of_mesh("model")
    max_record_mib: int = of_mesh("max_record_mib")
    dedup_window: Count = 100_000
    """How many ended tasks are remembered, to detect repeated task ids."""
    max_open_tasks: Count = 4096
    """Tasks of full batches that are read and not ended; more wait on the log."""
    producer_max_open_tasks: Count | None = None
    """Open tasks of one producer; more are refused with a dead letter. If several producers share a mesh, set it well
    below ``max_open_tasks``, at which reading stops for all. Unset: no limit."""
    producer_max_open_bytes: Count | None = None
    """Bytes of one producer's open tasks; the same."""
    max_task_timeout_s: Seconds | None = None
    """Largest ``timeout_s`` of a task; more is refused. Unset: a day."""
    max_repeat_times: Count | None = None
    """Maximum runs of one task; more is refused. Unset: 1,024."""
    max_open_bytes: Annotated[int, Field(ge=MIN_OPEN_BYTES)] = 128 << 20
    """Bytes of open tasks, as records; more wait on the log. One batch may have half of it. In memory a task of plain
    text takes twice its bytes, one of nested data up to fifteen times."""
    retention_s: Seconds = 60.0
    """How often records that are no longer needed are deleted."""
    keep_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Minimum age of deleted records. Unset: a week for tasks and experiences, a day for commands and events."""

    @property
    def max_batch_tasks(self) -> int:
        # So that its manifest is no larger than the cluster's records.
        return min(MAX_BATCH_TASKS, TASKS_PER_MIB * (self.max_record_mib - 1))

    @property
    def max_batch_parts(self) -> int:
        # At least two of each task.
        return MAX_BATCH_PARTS // MAX_BATCH_TASKS * self.max_batch_tasks

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.takeover_s <= 2 * self.heartbeat_s:
            raise conflict(
                f"coordinator.takeover_s is {self.takeover_s}, not more than twice coordinator.heartbeat_s, "
                f"which is {self.heartbeat_s}"
            )
        return self.fits_records()

    def fits_records(self) -> Self:
        # Asked again when ``mesh`` has said its word.
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


type OrderName = Literal["sequential", "shuffled", "random", "easy_to_hard", "by_difficulty"]


class TasksetSettings(Section):
    """A task set, which turns a dataset into tasks. See docs/tasksets.md."""

    name: Identifier = "taskset-0"
    """Its identity across restarts, and the prefix of its task ids. Use another name for another dataset."""
    path: ExistingFile | None = None
    """Tasks to train on: a JSONL file, or a description in TOML of several sets. See docs/tasksets.md."""
    order: OrderName = "shuffled"
    """Order of rows. ``sequential``, ``shuffled`` and ``easy_to_hard`` use each once an epoch, ``random`` chooses at
    random, and ``by_difficulty`` prefers rows of which some runs did well and some did not."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the order."""
    epochs: Count | None = None
    """How often each row is used. Unset: no end."""
    ahead: Count = 256
    """Tasks that are produced and not answered; use at least two batches."""
    eval_interval: Count = 10
    """Versions from one evaluation to the next."""
