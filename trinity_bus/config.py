"""Settings: read once at start from the environment, checked before anything else starts.

Every setting is an environment variable, ``TRINITY_BUS_<SECTION>__<SETTING>``: ``TRINITY_BUS_KAFKA__NAMESPACE=team-a``
sets ``Settings().kafka.namespace``. A wrong value raises one :class:`~trinity_bus.errors.ConfigError` of one line.
Secrets never appear in a message. Each can also lie in a file, which a variable of its name and ``_FILE`` gives, as
compose and Kubernetes mount them. Telemetry is also configured by the standard ``OTEL_`` variables. Durations are in
seconds and end in ``_s``.
"""

import difflib
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from schemas.batch import MAX_BATCH_PARTS, MAX_BATCH_TASKS
from schemas.record import Identifier
from schemas.task import Task
from trinity_bus.errors import ConfigError

ENV_PREFIX = "TRINITY_BUS_"
ENV_DELIMITER = "__"
FILE_SUFFIX = "_FILE"
MIN_OPEN_BYTES = 4 * Task.MAX_BYTES
_MAX_SHOWN = 120
_MAX_SECRET_BYTES = 64 << 10
_PORTS = re.compile(r"^(\d{1,5})(?:-(\d{1,5}))?$")
_SERVER = re.compile(r"^(\[[0-9a-fA-F:]+\]|[^\s:,]+):(\d{1,5})$")


def _existing_file(path: Path) -> Path:
    if not path.is_file():
        raise PydanticCustomError("no_such_file", "no such file; give the path of a readable file")
    return path


def _servers(value: str) -> str:
    servers = [server.strip() for server in value.split(",")]
    for server in servers:
        match = _SERVER.match(server)
        if match is None or not 0 < int(match[2]) < 1 << 16:
            raise PydanticCustomError("bad_server", "expected host:port, several separated by commas")
    return ",".join(servers)


def _port_range(value: str) -> str:
    match = _PORTS.match(value)
    first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
    if not first <= last < 1 << 16 or (first == 0 and last != 0):
        raise PydanticCustomError("bad_ports", "expected a port, or a range such as 7000-7009")
    return value


def _named_host(value: object) -> object:
    return value.replace("{host}", socket.gethostname()) if isinstance(value, str) else value


type ExistingFile = Annotated[Path, AfterValidator(_existing_file)]
type Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
type Count = Annotated[int, Field(ge=1)]
type InstanceName = Annotated[Identifier, BeforeValidator(_named_host)]


class Section(BaseModel):
    """Base of all sections: immutable, and a misspelt name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class KafkaSettings(Section):
    """Where the log is and how to reach it."""

    bootstrap_servers: Annotated[str, AfterValidator(_servers)] | None = None
    """``host:port`` of one or more brokers, separated by commas. Unset: the embedded broker."""
    namespace: Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")] = "trinity"
    """Stands in front of every topic, group and transactional id, so that several runs can share a cluster."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How to connect. The two with SSL check the broker's certificate and host name."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    """How to log in, with the two SASL protocols."""
    sasl_username: str | None = None
    """Who logs in."""
    sasl_password: SecretStr | None = None
    """The password of ``sasl_username``."""
    ssl_cafile: ExistingFile | None = None
    """Certificates to trust, PEM. Unset: those of the system."""
    ssl_certfile: ExistingFile | None = None
    """This client's certificate, PEM, where the broker asks for one."""
    ssl_keyfile: ExistingFile | None = None
    """The private key of ``ssl_certfile``, PEM."""
    ssl_password: SecretStr | None = None
    """The password of ``ssl_keyfile``, where it is encrypted."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    """How records are packed before they are sent; readers understand all of them, whatever is set here. Worth it where
    the network or the disk is narrow: zstd makes experiences 63 % and tasks 28 % of their size and takes 4 to 5 ms of a
    core for each MiB, snappy 77 % and 46 % at 2 to 3 ms, lz4 70 % and 35 % at 23 to 55 ms, gzip 62 % and 27 % at 53 to
    411 ms; unpacking takes 0.5 to 1.5 ms, of gzip 3 to 6 (``make bench NAME=compression``)."""
    replication_factor: Count | None = None
    """Copies of each partition, for topics that are created. Unset: three, or as many as there are brokers where there
    are fewer. With three or more a record counts once two brokers have it."""
    request_timeout_s: Seconds = 30.0
    """How long one request to the broker may take before it counts as failed."""
    outage_s: Seconds = 60.0
    """How long the brokers may be away before what runs gives up: until then, records wait to be sent, readers wait for
    more, and nothing is lost."""

    @model_validator(mode="after")
    def _complete_credentials(self) -> Self:
        if self.security_protocol.startswith("SASL"):
            for name in ("sasl_username", "sasl_password"):
                if getattr(self, name) is None:
                    raise _missing(f"kafka.{name}", f"security protocol {self.security_protocol} needs it")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            lacking = "ssl_keyfile" if self.ssl_keyfile is None else "ssl_certfile"
            raise _missing(f"kafka.{lacking}", "a client certificate and its key go together")
        return self


class AccessSettings(Section):
    """Passwords that ``trinity-bus access apply`` gives to the mesh's users, on a cluster that checks rights."""

    coordinator_password: SecretStr | None = None
    """Of the coordinators. Unset, here and below: the user's password stays as it is. Services do not read these: they
    log in with ``kafka.sasl_username`` and ``kafka.sasl_password``."""
    explorer_password: SecretStr | None = None
    """Of the explorers."""
    trainer_password: SecretStr | None = None
    """Of the trainer."""
    taskset_password: SecretStr | None = None
    """Of the tasksets."""
    producer_password: SecretStr | None = None
    """Of programs that send tasks and batches of their own: clients in any language."""
    operator_password: SecretStr | None = None
    """Of who runs the mesh: the command line; all that producers may, and ending others' batches, and versions."""
    admin_password: SecretStr | None = None
    """Of who creates the topics."""
    producer_write_bytes_s: Count | None = None
    """Bytes a second that all producers together may send to a broker, before it slows them down. Unset, here and
    below: any; ``trinity-bus access apply`` takes a quota away that was set before."""
    producer_read_bytes_s: Count | None = None
    """Bytes a second that they may read from a broker."""
    producer_request_percent: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Share of the time of one of a broker's threads that their requests may take, in percent: 100 is one thread."""


class BrokerSettings(Section):
    """The embedded broker, where no other is configured."""

    port: Annotated[int, Field(ge=0, lt=1 << 16)] | None = None
    """Port on the loopback interface. 0: any free one. Unset: the one that this data folder had last, else 9092 or any
    free one."""
    data_dir: Path | None = None
    """Folder of the log. Unset: ``trinity-bus/broker`` in ``XDG_DATA_HOME`` (``~/.local/share``)."""
    cache_dir: Path | None = None
    """Folder of downloads (Kafka's jars). Unset: ``trinity-bus`` in ``XDG_CACHE_HOME`` (``~/.cache``)."""
    heap_mib: Annotated[int, Field(ge=128)] = 512
    """Most memory for the Java heap, MiB. The log itself is cached by the operating system."""
    fsync: bool = False
    """Write each record to the disk before it is acknowledged. Without, what is acknowledged survives a crash of the
    broker, but not of the machine."""
    start_timeout_s: Seconds = 120.0
    """How long it may take to become ready."""


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
    wait_after_min_s: Seconds = 30.0
    """How long a batch that has as many tasks done as it needs still waits for the others."""
    return_partial_tasks: bool = False
    """Whether a task of which only some runs are done counts, with those, when an attempt at it breaks off or its
    batch ends. Otherwise its runs are all done again, or not at all."""
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
    model: Identifier = "policy"
    """Name of the model that is trained: the key of its versions."""
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

    @model_validator(mode="after")
    def _splits_fit(self) -> Self:
        parts = self.batch_size * -(-self.group_size // (self.max_repeat_times_per_runner or self.group_size))
        if parts > MAX_BATCH_PARTS:
            raise PydanticCustomError(
                "too_many_parts",
                "{batch_size} tasks of {group_size} runs are {parts} parts of {per_part}, and a batch has {most} at "
                "most: raise {name}, or lower the batch size",
                {
                    "batch_size": self.batch_size,
                    "group_size": self.group_size,
                    "parts": parts,
                    "per_part": self.max_repeat_times_per_runner,
                    "most": MAX_BATCH_PARTS,
                    "name": env_name("coordinator.max_repeat_times_per_runner"),
                },
            )
        return self


class SynchronizerSettings(Section):
    """How, and when, versions are published and taken. The same for all services of a mesh; see docs/versions.md."""

    sync_method: Literal["nccl", "memory", "checkpoint"] = "nccl"
    """How weights come to explorers. ``nccl``: sent to each over a private link; on CPUs, gloo carries it. ``memory``:
    each explorer takes them from the trainer's memory, at its own pace. ``checkpoint``: each reads them from
    ``trainer.checkpoint_dir``, which all must see under the same path."""
    sync_dtype: Literal["same", "float32", "bfloat16", "float16"] = "same"
    """As what weights travel; give what the engines hold, to send no more than they can use. ``same``: as trained."""
    sync_delta: bool = False
    """With ``memory`` and ``checkpoint``: send only what has changed to explorers that hold an earlier version, where
    that is smaller; worth it across slow links, with 16-bit weights. With ``checkpoint`` it costs the trainer one more
    copy of the weights in memory; explorers keep a copy in any case."""
    sync_style: Literal["fixed", "explorer_driven", "trainer_driven", "fully_async"] = "fully_async"
    """Who says when. ``fixed``: the number of the batch. ``explorer_driven``: the explorers' side asks the trainer.
    ``trainer_driven``: the trainer publishes, and later batches wait for it. ``fully_async``: nobody waits, within
    ``coordinator.max_staleness`` (0 is strictly on-policy) and ``coordinator.max_inflight_batches``."""
    sync_interval: Count = 1
    """Batches, and steps, from one version in use to the next."""
    explorer_sync_interval: Count | None = None
    """Batches after which the explorers' side takes (``fixed``) or asks for (``explorer_driven``) another version; the
    other styles do not use it. Unset: ``sync_interval``."""
    trainer_sync_interval: Count | None = None
    """Steps after which the trainer publishes; ``explorer_driven`` does not use it. Unset: ``sync_interval``."""
    sync_offset: Annotated[int, Field(ge=0)] = 0
    """Batches that the explorers are ahead of the trainer, with ``fixed`` and ``explorer_driven``: 0 is on-policy, 1 is
    one step off."""
    sync_timeout_s: Seconds = 30.0
    """How long an explorer may take from the announcement of a version until it says that it serves it; then it is
    named anew. No wait within a transfer, at either end, is longer. Raise it for large models and slow links."""
    tls_certfile: ExistingFile | None = None
    """The trainer's certificate for pulls (``memory``), with those that lead to its authority, PEM. It holds for
    ``trainer.host``. Unset: pulls are not encrypted."""
    tls_keyfile: ExistingFile | None = None
    """The private key of ``tls_certfile``, PEM, without a password."""
    tls_cafile: ExistingFile | None = None
    """Certificates that explorers trust for pulls, PEM. Set where the trainer has a certificate."""

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certfile is None) != (self.tls_keyfile is None):
            lacking = "tls_keyfile" if self.tls_keyfile is None else "tls_certfile"
            raise _missing(f"synchronizer.{lacking}", "a certificate and its key go together")
        given = [name for name in ("tls_certfile", "tls_cafile") if getattr(self, name) is not None]
        if given and self.sync_method != "memory":
            raise PydanticCustomError(
                "no_tls",
                "{name} is set, and {method} cannot be encrypted: only {setting}=memory can",
                {
                    "name": env_name(f"synchronizer.{given[0]}"),
                    "method": f"{env_name('synchronizer.sync_method')}={self.sync_method}",
                    "setting": env_name("synchronizer.sync_method"),
                },
            )
        return self


class ExplorerSettings(Section):
    """One explorer: its name, its model and its engine."""

    name: InstanceName = "explorer-0"
    """Its identity over restarts: no two live explorers share one. ``{host}`` in it is the host's name."""
    model_path: str | None = None
    """Folder of the Hugging Face model to start from."""
    slots: Count = 64
    """Rollouts run at once."""
    max_model_len: Count = 1024
    """Longest prompt plus response, in tokens."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Of weights and activations."""
    heartbeat_s: Seconds = 0.5
    """How often it says that it lives."""
    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Of tasks that name none."""
    max_tokens: Count = 256
    """Longest response of tasks that name none, in tokens."""
    cpu_kvcache_gib: Annotated[float, Field(gt=0)] = 1.0
    """Most room for the KV cache on a CPU, GiB; less is taken where the longest sequences need less."""
    max_num_seqs: Count = 256
    """Sequences that the engine computes at once; the others wait."""
    cpu_threads: Count = 1
    """Threads of the engine's arithmetic on a CPU."""
    cpu_cores: Annotated[str, Field(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$")] | None = None
    """Cores that the engine may run on, such as ``0`` or ``0-3,8``; each of several engines its own. Unset: all."""
    tensor_parallel_size: Count = 1
    """GPUs that share one copy of the model."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of a GPU's memory that the engine takes."""
    compilation: Literal["auto", "on", "off"] = "auto"
    """Whether the engine compiles the model: slower to start, faster to run. ``auto``: on GPUs."""
    start_method: Literal["auto", "fork", "spawn"] = "auto"
    """How the engine's process starts. ``fork`` saves an import and computes with one thread. ``auto``: ``fork`` on
    a CPU with one thread."""
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    """Of the engine's random numbers. Unset: another at each start. Give each of several explorers its own."""
    start_timeout_s: Seconds = 600.0
    """Limit of starting the engine."""
    drain_s: Seconds = 2.0
    """How long rollouts may still finish when the explorer is told to stop."""
    runners: Count = 1
    """Processes that run workflows. The slots are divided among them."""
    workflow_modules: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*(,[A-Za-z_][\w.]*)*$")] | None = None
    """Modules of yours that register workflows, separated by commas, such as ``my_tasks,my_package.games``: installed,
    in the working folder, or on ``PYTHONPATH``. They are imported once, before runners are forked, and start no
    threads. Unset: only the workflows that come with the project."""
    runner_stuck_s: Seconds = 30.0
    """A runner that answers nothing for this long, because a workflow blocks it, is stopped and replaced."""
    cancel_grace_s: Seconds = 5.0
    """How long a workflow that is cancelled may take to let go, before its runner is stopped and replaced."""
    runner_max_attempts: Count | None = None
    """Attempts after which a runner is replaced, once they have ended, against what workflows leave behind. Unset:
    never."""
    runner_max_rss_mib: Count | None = None
    """Memory above which a runner takes no more attempts and is replaced, MiB; with twice as much it is killed. An idle
    one has about 120, most of it shared. Unset: any."""
    runner_report_s: Seconds = 1.0
    """How often the states of the runners are told."""
    runner_user: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")] | None = None
    """User, by name or number, as which runners run; the explorer must be started as root. Unset: that of the explorer.
    Of another user, workflows reach none of the explorer's files and processes: see docs/workflows.md."""
    runner_environment: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(,[A-Za-z_]\w*)*$")] | None = None
    """Variables of the environment that runners are given beside the harmless ones, separated by commas, such as
    ``JUDGE_URL,JUDGE_KEY``. Workflow code can read them. Unset: none."""

    @field_validator("runner_environment")
    @classmethod
    def _spares_secrets(cls, value: str | None) -> str | None:
        ours = [name for name in (value or "").split(",") if name.upper().startswith(ENV_PREFIX)]
        if ours:
            raise PydanticCustomError("ours", "workflows may not have {name}", {"name": ours[0]})
        return value


class TrainerSettings(Section):
    """The trainer: its model, its algorithm and its checkpoints."""

    name: InstanceName = "trainer-0"
    """Its identity over restarts. ``{host}`` in it is the host's name."""
    model_path: str | None = None
    """Folder of the Hugging Face model to start from."""
    checkpoint_dir: Path | None = None
    """Where checkpoints go, and where a restarted trainer looks for the newest."""
    checkpoint_interval: Count = 1
    """Steps between checkpoints. A version is never published before its checkpoint is durable."""
    keep_checkpoints: Count = 3
    """How many checkpoints to keep; explorers may still read the one before the newest."""
    export_dir: Path | None = None
    """Where the trained model goes, as a Hugging Face folder, when ``total_steps`` are done. Unset: nowhere."""
    total_steps: Count | None = None
    """Steps after which training ends; the trainer goes on serving weights. Unset: it trains as long as it runs."""
    heartbeat_s: Seconds = 0.5
    """How often it says that it lives."""
    host: str = "127.0.0.1"
    """Address at which explorers reach this trainer for weights."""
    weights_port: Annotated[str, AfterValidator(_port_range)] = "0"
    """Port at which explorers ask for weights, or a range such as ``7000-7009``, of which the first free one is taken.
    0: any. With ``nccl``, gloo and NCCL listen on others beside, which the operating system chooses."""
    bucket_mib: Count = 16
    """Weights are sent in pieces of at most this many MiB."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-6
    """Of AdamW, after warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the learning rate rises linearly to its value."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Of AdamW; norms are exempt."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Of AdamW: decay of the mean of gradients."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Of AdamW: decay of the mean of squared gradients."""
    max_grad_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Gradients are scaled down to this norm."""
    mini_batches: Count = 1
    """Updates of the weights for each batch: its samples are shuffled and divided into so many parts."""
    loss_normalizer: Literal["batch", "update"] = "batch"
    """What the sum over tokens is divided by. ``batch``: the response tokens of the whole batch, those of groups that
    teach nothing included, in equal parts for each update (Yu et al., arXiv:2503.14476, eq. 8, over the whole batch),
    so that a batch of which little is to be learned changes the weights little. ``update``: the trained tokens of the
    update itself, with fewer updates where groups are skipped."""
    old_logprobs: Literal["rollout", "recompute"] = "rollout"
    """The policy that updates stay close to. ``rollout``: the one that drew the tokens, as reported. ``recompute``: the
    weights at the start of the step, with importance weights between the two; one more forward pass where
    ``mini_batches`` is not 1."""
    normalize_std: bool = True
    """Divide advantages by the standard deviation of their group."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """How far the probability of a token may fall in a step before its gradient stops, as a fraction."""
    clip_high: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.28
    """How far it may rise."""
    dual_clip: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Bound of the loss of a token with a negative advantage, in multiples of the advantage. Unset: none."""
    tis_cap: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 2.0
    """Cap of the importance weights between old and rollout policy. With ``old_logprobs=rollout`` they are all 1."""
    kl_coef: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight of the KL divergence from the model in ``model_path``. Above 0, a copy of that model is kept in memory."""
    entropy_coef: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight of the entropy bonus."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """What logits are divided by; that of the rollouts, where the engine reports logprobs after it."""
    micro_batch_tokens: Count = 16_384
    """Tokens that go through the model at once; bounds memory."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and activations. ``auto``: float32 on a CPU, bfloat16 on a GPU (the optimizer keeps float32)."""
    tensor_parallel: Count = 1
    """Ranks over which each layer is split. The trainer is as many processes as this times ``pipeline_parallel``, all
    on one machine, each with a GPU of its own where there are GPUs."""
    pipeline_parallel: Count = 1
    """Ranks over which the layers are distributed, the same number to each."""
    threads: Count | None = None
    """CPU threads of torch, in each rank. Unset: torch's own choice. Equal losses after a restart need an equal
    number."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the shuffling of samples; each step derives its own from it."""

    @property
    def weights_ports(self) -> range:
        """``weights_port`` as numbers."""
        first, _, last = self.weights_port.partition("-")
        return range(int(first), int(last or first) + 1)


class TasksetSettings(Section):
    """A dataset that is turned into tasks."""

    name: Identifier = "taskset-0"
    """Its identity over restarts, and the beginning of its task ids. Another dataset needs another name."""
    path: ExistingFile | None = None
    """Tasks to train on: a file of JSON lines."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the order in each epoch."""
    epochs: Count | None = None
    """How often each line is used. Unset: without end."""
    ahead: Count = 256
    """Tasks produced and not yet answered; at least two batches keep everybody busy."""
    eval_path: ExistingFile | None = None
    """Tasks to examine model versions with: a file of JSON lines. Unset: they are not examined."""
    eval_name: Identifier = "held-out"
    """What the evaluation is called in batch ids and metrics."""
    eval_interval: Count = 10
    """Versions from one evaluation to the next."""
    eval_repeat_times: Count = 1
    """Runs of each evaluation task that names no number."""
    eval_temperature: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Of evaluation tasks that name none."""


class HealthSettings(Section):
    """Where a service answers ``/livez`` and ``/readyz``."""

    port: Annotated[int, Field(ge=0, lt=1 << 16)] | None = None
    """Port of the endpoint. Unset: there is none."""
    host: str = "127.0.0.1"
    """Address that it listens on."""
    wedged_s: Seconds = 15.0
    """A process whose event loop does not turn for this long is not alive."""
    start_s: Seconds = 900.0
    """How long a process may take to start."""
    unread_s: Seconds = 60.0
    """A service that has read nothing for this long, while there is something for it to read, is not ready."""


class TelemetrySettings(Section):
    """Where spans and metrics go without an OTLP endpoint."""

    run_dir: Path | None = None
    """Folder of this run: spans go to ``traces/``, metrics to ``metrics/``. Unset: they are not kept."""
    run_id: Identifier | None = None
    """Name of this run in the telemetry of a system that sees several. Unset: the name of ``run_dir``."""
    metrics_interval_s: Seconds = 10.0
    """How often metrics are written."""
    record_content: bool = False
    """Whether spans may tell what workflows say in their errors, which may quote what a model has answered, and
    whatever a task holds. Otherwise they tell the type of such an error alone; the attempt's result has its text."""


class Settings(BaseSettings):
    """All settings, from the environment.

    Raises:
        ConfigError: A value is wrong, or a name is misspelt.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        # Compose files pass on unset variables as empty ones.
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
    )

    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    access: AccessSettings = Field(default_factory=AccessSettings)
    broker: BrokerSettings = Field(default_factory=BrokerSettings)
    coordinator: CoordinatorSettings = Field(default_factory=CoordinatorSettings)
    synchronizer: SynchronizerSettings = Field(default_factory=SynchronizerSettings)
    explorer: ExplorerSettings = Field(default_factory=ExplorerSettings)
    trainer: TrainerSettings = Field(default_factory=TrainerSettings)
    taskset: TasksetSettings = Field(default_factory=TasksetSettings)
    health: HealthSettings = Field(default_factory=HealthSettings)
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the environment alone, and the files that it names."""
        del env_settings, dotenv_settings, file_secret_settings
        return init_settings, _Environment(settings_cls)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            # The cause is left out: it prints the whole input, secrets included.
            raise ConfigError("; ".join(_line(detail) for detail in error.errors(include_url=False))) from None
        except SettingsError:
            raise ConfigError(_not_a_section()) from None
        for name in os.environ:
            _refuse_misspelt(name)


class _Environment(EnvSettingsSource):
    """The environment, in which a secret's ``_FILE`` variable stands for what is in the file."""

    def _load_env_vars(self) -> Mapping[str, str | None]:
        given = dict(super()._load_env_vars())
        for variable in secret_variables():
            path = given.pop((variable + FILE_SUFFIX).lower(), None)
            if path is None:
                continue
            if given.get(variable.lower()) is not None:
                raise ConfigError(f"{variable} and {variable}{FILE_SUFFIX} are both set; leave one of them")
            given[variable.lower()] = _read_secret(variable + FILE_SUFFIX, Path(path))
        return given


def _read_secret(variable: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_SECRET_BYTES + 1)
        secret = content.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise ConfigError(f"{variable}={str(path)!r}: {error.strerror}; give the path of a readable file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{variable}={str(path)!r}: the file is not UTF-8 text") from None
    if not secret or len(content) > _MAX_SECRET_BYTES:
        raise ConfigError(f"{variable}={str(path)!r}: the file is {'too large' if secret else 'empty'}")
    return secret


def secret_variables() -> list[str]:
    """Return the environment variable of every setting that is a secret; each can be given with ``_FILE`` instead."""
    return [
        env_name(f"{section}.{name}")
        for section, fields in _sections().items()
        for name, field in fields.items()
        if _is_secret(field)
    ]


def forget_secrets() -> None:
    """Take every secret out of ``os.environ``, so that no process started from now on inherits one.

    Settings that were read before keep theirs; those that are read afterwards have none.
    """
    secret = set(secret_variables())
    # A section may be given as JSON, with its secrets in it.
    holders = {env_name(section) for section, fields in _sections().items() if any(map(_is_secret, fields.values()))}
    for name in list(os.environ):
        if name.upper().removesuffix(FILE_SUFFIX) in secret or name.upper() in holders:
            del os.environ[name]


def _is_secret(field: FieldInfo) -> bool:
    return "SecretStr" in str(field.annotation)


def env_name(path: str) -> str:
    """Return the environment variable of a setting: ``"kafka.namespace"`` gives ``"TRINITY_BUS_KAFKA__NAMESPACE"``."""
    return ENV_PREFIX + path.replace(".", ENV_DELIMITER).upper()


def required[T](value: T | None, path: str, why: str) -> T:
    """Return the value of an optional setting that this service cannot do without.

    Args:
        value: The setting's value.
        path: Its place, such as ``"explorer.model_path"``.
        why: What it is needed for, the end of the sentence "it is needed ...".

    Raises:
        ConfigError: It is unset.
    """
    if value is None:
        raise ConfigError(f"{env_name(path)} is not set: it is needed {why}")
    return value


def setting_paths() -> Iterator[tuple[str, str]]:
    """Every setting's environment variable and description, for documents and messages."""
    for section, fields in _sections().items():
        for name, field in fields.items():
            yield env_name(f"{section}.{name}"), field.description or ""


def _sections() -> dict[str, dict[str, FieldInfo]]:
    sections = ((name, field.annotation) for name, field in Settings.model_fields.items())
    return {name: kind.model_fields for name, kind in sections if isinstance(kind, type) and issubclass(kind, Section)}


def _missing(path: str, why: str) -> PydanticCustomError:
    return PydanticCustomError("missing_setting", "{path} is not set: {why}", {"path": path, "why": why})


def _line(detail: ErrorDetails) -> str:
    """One validation error as "variable=value: what would be right"."""
    if detail["type"] == "missing_setting":
        return f"{env_name(detail['ctx']['path'])} is not set: {detail['ctx']['why']}"
    if detail["type"] in ("too_many_parts", "no_tls"):
        return detail["msg"]
    # Beyond section and setting, a location names parts of a type, not of a variable.
    path = ".".join(str(part) for part in detail["loc"][:2])
    name = env_name(path)
    if detail["type"] == "extra_forbidden":
        return f"{name} is not a setting{_suggestion(name)}"
    message = detail["msg"][:1].lower() + detail["msg"][1:]
    return f"{name}={_shown(path, detail['input'])}: {message}"


def _shown(path: str, value: object) -> str:
    section, _, setting = path.partition(".")
    field = _sections().get(section, {}).get(setting)
    if field is None or isinstance(value, Mapping):
        return "(not shown)"
    if _is_secret(field):
        return "(secret)"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def _suggestion(name: str) -> str:
    known = [variable for variable, _ in setting_paths()] + [name + FILE_SUFFIX for name in secret_variables()]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _not_a_section() -> str:
    """Note that a section's own variable holds something that is not JSON."""
    for section in _sections():
        name = env_name(section)
        if name in os.environ:
            return f"{name} is not a setting: name one of the section, such as {name}{ENV_DELIMITER}..., or give JSON"
    return "a setting is not valid JSON"


def _refuse_misspelt(variable: str) -> None:
    """Raise for a variable of ours that is almost, but not quite, a setting.

    pydantic-settings ignores what it does not know, so that one underscore too few would silently have no effect.
    """
    name = variable.upper()
    if not name.startswith(ENV_PREFIX) or name.removeprefix(ENV_PREFIX).split(ENV_DELIMITER)[0].lower() in _sections():
        return
    known = [path for path, _ in setting_paths()]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
    if close:
        raise ConfigError(f"{variable} is not a setting; did you mean {close[0]}?")
