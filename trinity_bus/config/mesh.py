"""The sections ``mesh``, what services have in common, and ``kafka``, ``access`` and ``broker``, the log.

A service takes one section for each of its parts, and finds there what it shares with others: sections declare such
a setting with :func:`of_mesh`. It is set in ``mesh`` alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic.fields import FieldInfo

from schemas.record import Identifier
from schemas.topic import Topic
from trinity_bus.config.values import Count, ExistingFile, Seconds, Section, Server, Servers, Size, conflict

type Namespace = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
type Mode = Literal["both", "explore", "train", "bench", "serve"]
type TemplateOptions = Annotated[dict[str, bool | int | float | str], Field(max_length=32)]
type Dtype = Literal["auto", "float32", "float16", "bfloat16"]

# the modes in which each service takes part
TAKES_PART: Final[Mapping[str, frozenset[Mode]]] = {
    "coordinator": frozenset(["both", "explore", "train", "bench", "serve"]),
    "explorer": frozenset(["both", "explore", "bench", "serve"]),
    "trainer": frozenset(["both", "train"]),
    "taskset": frozenset(["both", "explore", "bench"]),
    "gateway": frozenset(["both", "explore", "bench", "serve"]),
}

MIN_RECORD_MIB = 5  # a task has 4 at most, and the order to run it some KiB more
MAX_RECORD_MIB = 65  # with it every topic takes the largest of its records


def computed_dtype(dtype: Dtype, *, on_cpu: bool) -> str:
    """Return in which type weights and activations are, by the setting and the device."""
    return ("float32" if on_cpu else "bfloat16") if dtype == "auto" else dtype


_OF_MESH: dict[str, Any] = {"of_mesh": True}


class MeshSettings(Section):
    """Common settings: use the same values for all services."""

    namespace: Namespace = "trinity"
    """Prefix of every topic, group and transactional id, so that several runs can share a cluster."""
    model: Identifier = "policy"
    """Name of the trained model: the key of its versions."""
    mode: Mode = "both"
    """Which services take part. ``both``: explorers follow the trainer. ``explore``, ``bench``, ``serve``: they serve a
    fixed checkpoint. ``train``: the trainer trains on what the log has. See docs/pools.md."""
    model_path: str | None = None
    """The initial Hugging Face model of explorers and trainer: a folder, or a name on a model hub,
    ``organization/name@revision``, which is downloaded once to ``HF_HOME``. Name the commit for all services."""
    dtype: Dtype = "auto"
    """Type of weights and activations. ``auto``: float32 on a CPU, bfloat16 on a GPU (the optimizer and
    ``trainer.engine = "torch"`` use float32); explorers on GPUs that follow no trainer use the model folder's. bfloat16
    on a CPU needs AVX512_BF16 or AMX. The trainer does not train in float16."""
    max_model_len: Size = 1024
    """Longest prompt plus response, in tokens."""
    max_tokens: Count = 256
    """Longest response of tasks that set none, in tokens; less than ``max_model_len``."""
    chat_template_options: TemplateOptions = Field(default={})
    """Options of the model's chat template, such as ``{"enable_thinking": false}``, for everything except the trainer's
    examples. A request may override them (``chat_template_kwargs``)."""
    parse_special_tokens: bool = False
    """Whether special tokens (``<|im_end|>``) in user messages and tool results are special tokens. By default they are
    text, so that a page that a tool reads cannot end its turn. See docs/workflows.md."""
    renderer: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """Renderer of the package ``renderers`` for conversations, such as ``qwen3``. Unset: the model's chat template,
    unless the package knows the name in ``model_path``."""
    max_record_mib: Annotated[int, Field(ge=MIN_RECORD_MIB, le=MAX_RECORD_MIB)] = MAX_RECORD_MIB
    """Largest record that the cluster accepts (its ``max.message.bytes``), in MiB; often 8 on managed clusters. Larger
    groups are split over several records, and a batch may have 1024 tasks for each MiB except the first."""

    adapter_rank: Annotated[int, Field(ge=0, le=512)] = 0
    """With ``trainer.lora_rank``: publish only the adapter, of at most this rank, and let explorers serve it beside
    their initial weights. 0: explorers get the merged weights, which cost nothing to serve."""

    @model_validator(mode="after")
    def _leaves_room_for_prompts(self) -> Self:
        if self.max_tokens >= self.max_model_len:
            raise conflict(
                f"mesh.max_tokens is {self.max_tokens}, which leaves no room for prompts: mesh.max_model_len is "
                f"{self.max_model_len}"
            )
        return self


def of_mesh(name: str) -> Any:
    """Return the field of a section that takes its value from a setting of ``mesh``."""
    return Field(default=MeshSettings.model_fields[name].default, json_schema_extra=_OF_MESH)


def is_of_mesh(field: FieldInfo) -> bool:
    return field.json_schema_extra is _OF_MESH


class KafkaSettings(Section):
    """The address of the brokers, and how to connect."""

    bootstrap_servers: Servers | None = None
    """``host:port`` of one or more brokers, separated by commas. Unset: the embedded broker."""
    namespace: Namespace = of_mesh("namespace")
    max_record_mib: int = of_mesh("max_record_mib")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How to connect. The two with SSL verify the broker's certificate and host name."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    """How to log in, with the two SASL protocols."""
    sasl_username: str | None = None
    """The user to log in as."""
    sasl_password: SecretStr | None = None
    """The password of ``sasl_username``."""
    ssl_cafile: ExistingFile | None = None
    """Certificates to trust, PEM. Unset: those of the system."""
    ssl_certfile: ExistingFile | None = None
    """This client's certificate, PEM, if the broker requires one."""
    ssl_keyfile: ExistingFile | None = None
    """The private key of ``ssl_certfile``, PEM."""
    ssl_password: SecretStr | None = None
    """The password of ``ssl_keyfile``, if it is encrypted."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    """Compression of sent records; readers accept all. Useful on a slow network or disk: zstd makes experiences 63 % of
    their size at 4 to 5 ms of a core for each MiB, snappy 77 % at 2 to 3 ms; lz4 and gzip take longer."""
    replication_factor: Count | None = None
    """Copies of each partition in new topics. Unset: three, or the number of brokers if smaller. With three or more a
    record counts once two brokers have it."""
    request_timeout_s: Seconds = 10.0
    """Timeout of one request to a broker, after which it is retried: a connected but silent broker delays a client by
    as much. Raise it if a record of ``mesh.max_record_mib`` takes longer."""
    outage_s: Seconds = 60.0
    """How long the brokers may be unavailable before a service ends. Until then records wait to be sent, readers wait,
    and nothing is lost. For refused credentials a service ends after 10 s."""

    def max_message_bytes(self, topic: Topic) -> int:
        # Kafka's limit for one batch of records of a topic, on this cluster.
        return min(topic.max_message_bytes, self.max_record_mib << 20)

    @model_validator(mode="after")
    def _complete_credentials(self) -> Self:
        if self.security_protocol.startswith("SASL"):
            for name in ("sasl_username", "sasl_password"):
                if getattr(self, name) is None:
                    raise conflict(f"kafka.{name} is not set: kafka.security_protocol is {self.security_protocol}")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            lacking, given = ("keyfile", "certfile") if self.ssl_keyfile is None else ("certfile", "keyfile")
            raise conflict(f"kafka.ssl_{lacking} is not set: it goes together with kafka.ssl_{given}")
        return self


class AccessSettings(Section):
    """Passwords and quotas that ``trinity-bus access apply`` sets for the mesh's users."""

    coordinator_password: SecretStr | None = None
    """Of the coordinators. Unset, here and below: the password is not changed. Services do not read these; they log in
    with ``kafka.sasl_username`` and ``kafka.sasl_password``."""
    explorer_password: SecretStr | None = None
    """Of the explorers."""
    trainer_password: SecretStr | None = None
    """Of the trainer."""
    taskset_password: SecretStr | None = None
    """Of the task sets."""
    gateway_password: SecretStr | None = None
    """Of the gateways."""
    producer_password: SecretStr | None = None
    """Of programs that send their own tasks and batches, in any language."""
    operator_password: SecretStr | None = None
    """Of operators, who use the command line: all rights of producers, ending others' batches, and versions."""
    admin_password: SecretStr | None = None
    """Of the user that creates topics."""
    producer_write_bytes_s: Count | None = None
    """Bytes a second that all producers together may send to a broker before it throttles them. Unset, here and below:
    unlimited; ``trinity-bus access apply`` removes an earlier quota."""
    producer_read_bytes_s: Count | None = None
    """Bytes a second that all producers together may read from a broker."""
    producer_request_percent: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Share of a broker thread's time for their requests, in percent: 100 is one thread."""


class BrokerSettings(Section):
    """The embedded broker, used if no other is configured."""

    port: Annotated[int, Field(ge=0, lt=1 << 16)] | None = None
    """Port on the loopback interface. 0: any free one. Unset: the last one of this data folder, or 9092."""
    address: Server | None = None
    """``host:port`` of this machine at which other machines also reach it, without a password. Unset: none do."""
    data_dir: Path | None = None
    """Folder of the log. Unset: ``trinity-bus/broker`` in ``XDG_DATA_HOME`` (``~/.local/share``)."""
    cache_dir: Path | None = None
    """Folder of downloads (Kafka's jars). Unset: ``trinity-bus`` in ``XDG_CACHE_HOME`` (``~/.cache``)."""
    heap_mib: Annotated[int, Field(ge=128)] = 512
    """Maximum Java heap, MiB. The operating system caches the log itself."""
    fsync: bool = False
    """Write each record to the disk before it is acknowledged, so that it survives a crash of the machine."""
    start_timeout_s: Seconds = 120.0
    """Timeout of the broker's start."""
