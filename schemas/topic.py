"""A topic: what its records are, who writes and reads them, how long it keeps them; and the headers of records."""

from dataclasses import dataclass
from typing import Literal

# who writes or reads: a service of the mesh; or any other program, which sends tasks, or runs the mesh
type Role = Literal["coordinator", "explorer", "trainer", "taskset", "gateway", "producer", "operator"]

DAY_MS = 24 * 3_600_000
MIB = 1 << 20
ROOM = 64 << 10  # for the key, the headers and Kafka's framing of one record

# headers of Kafka records that every client may meet; values are UTF-8
CONTENT_TYPE = "content-type"
TRACEPARENT = "traceparent"  # W3C trace context: the span that sent this record
TRACESTATE = "tracestate"

# CloudEvents' attributes; see https://cloudevents.io
CE_PREFIX = "ce_"
CE_SPECVERSION = "ce_specversion"
CE_ID = "ce_id"
CE_SOURCE = "ce_source"
CE_TYPE = "ce_type"
CE_TIME = "ce_time"

MSGPACK = "application/vnd.msgpack"  # the registered media type of msgpack
JSON = "application/json"

# on dead letters: one word, of ``DecodeError.reason`` or of the reader that refused the record
DLQ_REASON = "dlq.reason"
DLQ_DETAIL = "dlq.detail"  # one line for people
DLQ_TOPIC = "dlq.topic"  # the topic that it came from, without the namespace
DLQ_PARTITION = "dlq.partition"
DLQ_OFFSET = "dlq.offset"
DLQ_LAST_OFFSET = "dlq.last_offset"  # the last of the offsets, where a whole batch of records cannot be read
DLQ_SIZE = "dlq.size"  # where the value is only the beginning: how large all of it was, in bytes
DLQ_SHA256 = "dlq.sha256"  # likewise: the hash of all of it, in hexadecimal


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Topic:
    """How a topic is created and what it carries. It is itself alone: a look at all of it would cost each record."""

    name: str  # without the namespace
    key: str  # what the record key is, in words
    partitions: int = 1
    cleanup: Literal["delete", "compact"] = "delete"
    retention_ms: int = -1  # -1 keeps records for ever
    retention_bytes: int = -1  # per partition; -1 is no limit
    keep_ms: int | None = None  # how long the coordinator keeps what is not needed any more, where it is who deletes
    max_message_bytes: int = 0  # 0 is that of the largest of ``records``
    min_compaction_lag_ms: int = 0
    delete_retention_ms: int = DAY_MS
    segment_ms: int = 7 * DAY_MS
    segment_bytes: int = 1 << 30
    description: str
    # The types that it carries; empty where its bytes are not for the codec. No reader takes another type from it, so
    # nobody says what is not theirs to say.
    records: tuple[type, ...] = ()
    # whether any partition will do for any record: nobody depends on the order of those of a key
    any_partition: bool = False
    # whether its readers read one partition each, and say which: so nobody has to know it from a key
    lanes: bool = False
    # whether its records have CloudEvents' headers, for programs outside the mesh
    cloud_events: bool = False
    # the field of its records that names who wrote them, which is their key too; None where there is no such
    sender: str | None = None
    writers: tuple[Role, ...]
    readers: tuple[Role, ...]

    def __post_init__(self) -> None:
        if not self.max_message_bytes:
            largest: int = max(getattr(record, "MAX_BYTES", 0) for record in self.records)
            object.__setattr__(self, "max_message_bytes", largest + ROOM)

    @property
    def grows(self) -> bool:
        # Whether it may be given more partitions while it is in use.
        return self.any_partition or self.lanes

    def full_name(self, namespace: str) -> str:
        # Several meshes share one cluster under different namespaces.
        return f"{namespace}.{self.name}"

    def config(self) -> dict[str, str]:
        """Kafka's topic configuration."""
        config = {
            "cleanup.policy": self.cleanup,
            "max.message.bytes": str(self.max_message_bytes),
            "message.timestamp.type": "LogAppendTime",
            "segment.bytes": str(self.segment_bytes),
            "segment.ms": str(self.segment_ms),
        }
        if self.cleanup == "compact":
            config["min.compaction.lag.ms"] = str(self.min_compaction_lag_ms)
            config["delete.retention.ms"] = str(self.delete_retention_ms)
        else:
            config["retention.ms"] = str(self.retention_ms)
            config["retention.bytes"] = str(self.retention_bytes)
        return config
