"""The sections ``kafka``, ``access`` and ``broker``: the log, its users, and the embedded one."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from schemas.topic import Topic
from trinity_bus.config.mesh import Namespace, of_mesh
from trinity_bus.config.values import Count, ExistingFile, Seconds, Section, Servers, conflict


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
