"""Kafka's requests that the client library lacks, and what is asked with them.

=============================  =======  ==========================================================================
request                        version  sources
=============================  =======  ==========================================================================
``Metadata``                   12       KIP-430 (Kafka 2.3): rights; KIP-516 (2.8): topics' ids. The library has 5
``DescribeLogDirs``            4        KIP-113; KIP-827 (3.3): the bytes that a disk has and has left
``AlterClientQuotas``          0        KIP-546. Brokers slow a user down that goes over its quota; they refuse nothing
``AlterUserScramCredentials``  0        KIP-554; RFC 5802, section 3, for ``SaltedPassword``. The password is never sent
=============================  =======  ==========================================================================
"""

import hashlib
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Array,
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

from trinity_bus.bus.administration.access import Operation
from trinity_bus.bus.client.connection import kafka_errors
from trinity_bus.bus.client.internals import ask

_NO_ID: Final = uuid.UUID(int=0)
_NOT_TOLD: Final = -(2**31)  # in place of rights, by a broker that was not asked for them
_SHA_512: Final = 2  # Kafka's number of SCRAM-SHA-512
ITERATIONS: Final = 8192  # brokers refuse fewer than 4,096 and more than 16,384
_SALT_BYTES: Final = 32

WRITE: Final = "producer_byte_rate"  # bytes a second that a user sends to one broker
READ: Final = "consumer_byte_rate"  # bytes a second that it reads from one
REQUESTS: Final = "request_percentage"  # percent of the time of one of the broker's threads that its requests take

_TAGS = ("tags", TaggedFields)
_TEXT = String("utf-8")
_COMPACT_TEXT = CompactString("utf-8")


def _request(key: int, version: int, asked: Schema, answered: Schema, *, flexible: bool = True) -> Any:
    # The library's class of such a request, made with the values of its schema.
    both = {"API_KEY": key, "API_VERSION": version}
    response = type("_Response", (Response,), {**both, "SCHEMA": answered})
    own = {"FLEXIBLE_VERSION": flexible, "RESPONSE_TYPE": response, "SCHEMA": asked}
    struct: Any = type("_Struct", (RequestStruct,), {**both, **own})

    class _Request(Request[struct]):  # type: ignore[misc]  # the client library is untyped here
        API_KEY = key

        def __init__(self, *values: Any) -> None:
            self._values = values

        def build(self, request_struct_class: Any) -> Any:
            return request_struct_class(*self._values)

    return _Request


def _schema(**fields: Any) -> Schema:
    return Schema(*fields.items(), _TAGS)


def _rows(**fields: Any) -> CompactArray:
    return CompactArray(*fields.items(), _TAGS)


class _Uuid(AbstractType[uuid.UUID]):  # type: ignore[misc]  # likewise
    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        return uuid.UUID(bytes=data.read(16))

    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        return value.bytes


_DescribeTopics = _request(
    3,
    12,
    _schema(
        topics=_rows(topic_id=_Uuid, name=_COMPACT_TEXT),
        allow_auto_topic_creation=Boolean,
        include_topic_authorized_operations=Boolean,
    ),
    _schema(
        throttle_time_ms=Int32,
        brokers=_rows(node_id=Int32, host=_COMPACT_TEXT, port=Int32, rack=_COMPACT_TEXT),
        cluster_id=_COMPACT_TEXT,
        controller_id=Int32,
        topics=_rows(
            error_code=Int16,
            name=_COMPACT_TEXT,
            topic_id=_Uuid,
            is_internal=Boolean,
            partitions=_rows(
                error_code=Int16,
                partition=Int32,
                leader=Int32,
                leader_epoch=Int32,
                **{name: CompactArray(Int32) for name in ("replicas", "isr", "offline")},
            ),
            authorized_operations=Int32,
        ),
    ),
)
_SIZES = _rows(partition_index=Int32, partition_size=Int64, offset_lag=Int64, is_future_key=Boolean)
_DescribeLogDirs = _request(
    35,
    4,
    _schema(topics=_rows(topic=_COMPACT_TEXT, partitions=CompactArray(Int32))),
    _schema(
        throttle_time_ms=Int32,
        error_code=Int16,
        results=_rows(
            error_code=Int16,
            log_dir=_COMPACT_TEXT,
            topics=_rows(name=_COMPACT_TEXT, partitions=_SIZES),
            total_bytes=Int64,
            usable_bytes=Int64,
        ),
    ),
)
_ENTITY = ("entity", Array(("entity_type", _TEXT), ("entity_name", _TEXT)))
_SetQuotas = _request(
    49,
    0,
    Schema(
        ("entries", Array(_ENTITY, ("ops", Array(("key", _TEXT), ("value", Float64), ("remove", Boolean))))),
        ("validate_only", Boolean),
    ),
    Schema(("throttle_time_ms", Int32), ("entries", Array(("error_code", Int16), ("error_message", _TEXT), _ENTITY))),
    flexible=False,
)
_SetCredentials = _request(
    51,
    0,
    _schema(
        deletions=_rows(name=_COMPACT_TEXT, mechanism=Int8),
        upsertions=_rows(
            name=_COMPACT_TEXT, mechanism=Int8, iterations=Int32, salt=CompactBytes, salted_password=CompactBytes
        ),
    ),
    _schema(throttle_time_ms=Int32, results=_rows(user=_COMPACT_TEXT, error_code=Int16, error_message=_COMPACT_TEXT)),
)


def describe_log_dirs(partitions: dict[str, list[int]]) -> Any:
    """Return the request, to one broker: its disks, and how much of these partitions (by full topic name) each has."""
    return _DescribeLogDirs([(topic, numbers, {}) for topic, numbers in partitions.items()], {})


def set_quotas(quotas: Mapping[str, Mapping[str, float | None]]) -> Any:
    """Return the request: user to quota to its value, None takes it away. Its response has an entry for each user."""
    rows = [
        ([("user", user)], [(name, 0.0 if value is None else value, value is None) for name, value in own.items()])
        for user, own in quotas.items()
    ]
    return _SetQuotas(rows, False)


def set_passwords(passwords: Mapping[str, str]) -> Any:
    """Return the request: user to password. Its response has a result for each user."""
    rows: list[tuple[Any, ...]] = []
    for user, password in passwords.items():
        salt = secrets.token_bytes(_SALT_BYTES)
        salted = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
        rows.append((user, _SHA_512, ITERATIONS, salt, salted, {}))
    return _SetCredentials([], rows, {})


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Which log this is. A topic that was deleted and made anew has the same name and other records; its id tells."""

    cluster: str  # Kafka's id of the cluster
    topic: str  # its id of the topic, a UUID


async def identity_of(admin: AIOKafkaAdminClient, topic: str) -> LogIdentity:
    """Ask a broker which log this is; ``topic`` is a full name. Raises aiokafka.errors.KafkaError: it does not say."""
    answer: Any = await ask(admin, _DescribeTopics([(_NO_ID, topic, {})], False, False, {}))
    ((error_code, _, topic_id, *_),) = answer.topics
    if error_code:
        raise for_code(error_code)(f"describe topic {topic}")
    return LogIdentity(cluster=answer.cluster_id or "", topic=str(topic_id))


async def allowed(admin: AIOKafkaAdminClient, topics: Sequence[str]) -> dict[str, frozenset[Operation]]:
    """Return what this user may do with each of some topics (full names); those that it may not see are left out."""
    # What it may do with a transactional id cannot be asked: to try it would end whoever has it.
    if not topics:
        return {}
    with kafka_errors("ask for rights"):
        answer = await ask(admin, _DescribeTopics([(_NO_ID, topic, {}) for topic in topics], False, True, {}))
    return {
        name: frozenset(operation for operation in Operation if bits >> operation & 1)
        for error, name, _, _, _, bits, _ in answer.topics
        if not error and bits != _NOT_TOLD
    }
