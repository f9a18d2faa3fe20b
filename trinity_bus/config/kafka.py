"""The section ``kafka``: where the log is and how to reach it."""

from typing import Literal, Self

from pydantic import SecretStr, model_validator

from schemas.topic import Topic
from trinity_bus.config.mesh import Namespace, of_mesh
from trinity_bus.config.section import Section, conflict
from trinity_bus.config.values import Count, ExistingFile, Seconds, Servers


class KafkaSettings(Section):
    """Where the log is and how to reach it."""

    bootstrap_servers: Servers | None = None
    """``host:port`` of one or more brokers, separated by commas. Unset: the embedded broker."""
    namespace: Namespace = of_mesh("namespace")
    max_record_mib: int = of_mesh("max_record_mib")
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
    request_timeout_s: Seconds = 10.0
    """How long one request to the broker may take before it counts as failed, and is made again: a broker that is
    connected and silent holds a client up for as long. Raise it where a record of ``mesh.max_record_mib`` takes longer
    on its way."""
    outage_s: Seconds = 60.0
    """How long the brokers may be away before what runs gives up: until then, records wait to be sent, readers wait for
    more, and nothing is lost. Credentials that brokers refuse are no outage: a service gives up after 10 s."""

    def max_message_bytes(self, topic: Topic) -> int:
        """Return Kafka's limit for one batch of records of a topic, on this cluster."""
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
