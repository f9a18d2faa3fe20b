"""The sections ``coordinator``, ``taskset`` and ``synchronizer``: tasks, batches, and versions."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.batch import MAX_BATCH_PARTS, MAX_BATCH_TASKS, TASKS_PER_MIB
from schemas.model_version import MAX_MEMBERS
from schemas.record import Identifier
from schemas.task import Task
from trinity_bus.config.mesh import of_mesh
from trinity_bus.config.values import Count, ExistingFile, InstanceName, ObjectUrl, Seconds, Section, conflict

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
    share expected tokens. Off, and with over-rollout, whose last tasks are given up: in the order of submission; off,
    explorers share attempts."""
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


class SynchronizerSettings(Section):
    """How and when versions are published and loaded: use the same values for all services. See docs/versions.md."""

    sync_method: Literal["nccl", "memory", "checkpoint", "object"] = "nccl"
    """How explorers get weights. ``nccl``: over private links (gloo on CPUs). ``memory``: over TCP, each at its own
    pace. ``checkpoint``: from ``trainer.checkpoint_dir``, under the same path for all. ``object``: from
    ``object_url``, where the trainer writes them."""
    object_url: ObjectUrl | None = None
    """With ``object``: where versions are, such as ``s3://bucket/mesh``. Explorers take them from below it alone.
    Credentials come from the environment and the files of the store's library (for ``s3://``, those of AWS)."""
    sync_dtype: Literal["same", "float32", "bfloat16", "float16"] = "same"
    """Type in which weights are sent; the engines' type sends no more than they need. ``same``: the trained one."""
    sync_fan_out: bool = True
    """With ``memory``: explorers pass a version on to each other, so that it leaves each machine once, over any ports.
    The trainer sends to those that others cannot reach. Not with TLS."""
    sync_style: Literal["fixed", "explorer_driven", "trainer_driven", "fully_async"] = "fully_async"
    """What decides when versions are published and loaded. ``fixed``: the batch's number. ``explorer_driven``: the
    explorers' side. ``trainer_driven``: the trainer, and later batches wait for it. ``fully_async``: nobody waits,
    within ``coordinator.max_staleness`` (0: on-policy) and ``coordinator.max_inflight_batches``."""
    sync_interval: Count = 1
    """Batches, and steps, from one used version to the next."""
    explorer_sync_interval: Count | None = None
    """Batches after which explorers load (``fixed``) or request a version. Unset: ``sync_interval``."""
    trainer_sync_interval: Count | None = None
    """Steps after which the trainer publishes; unused with ``explorer_driven``. Unset: ``sync_interval``."""
    sync_offset: Annotated[int, Field(ge=0)] = 0
    """Batches by which explorers are ahead of the trainer, with ``fixed`` and ``explorer_driven``; 0: on-policy."""
    sync_members: Annotated[int, Field(ge=1, le=MAX_MEMBERS)] = MAX_MEMBERS
    """Maximum explorers in one announcement of a version; others follow in the next. Fewer: shorter rounds."""
    sync_timeout_s: Seconds = 30.0
    """How long an explorer may take from the announcement of a version until it serves it; then it is invited again. No
    wait within a transfer is longer. Raise it for large models and slow links."""
    tls_certfile: ExistingFile | None = None
    """The trainer's certificate chain for pulls (``memory``), PEM, for ``trainer.host``. Unset: no encryption."""
    tls_keyfile: ExistingFile | None = None
    """The private key of ``tls_certfile``, PEM, without a password."""
    tls_cafile: ExistingFile | None = None
    """Certificates that explorers trust for pulls, PEM. Required if the trainer has a certificate."""

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certfile is None) != (self.tls_keyfile is None):
            lacking, there = ("keyfile", "certfile") if self.tls_keyfile is None else ("certfile", "keyfile")
            raise conflict(f"synchronizer.tls_{lacking} is not set: it goes together with synchronizer.tls_{there}")
        given = [name for name in ("tls_certfile", "tls_cafile") if getattr(self, name) is not None]
        if given and self.sync_method != "memory":
            raise conflict(
                f"synchronizer.{given[0]} is set, and synchronizer.sync_method is {self.sync_method}, which cannot be "
                "encrypted: only memory can"
            )
        return self
