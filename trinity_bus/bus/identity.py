"""Which log this is: the id of the cluster, and the id that a topic got when it was made.

A topic that was deleted and made anew has the same name and other records; its id tells. Kafka gives both in its
``Metadata`` answer from version 12 on (KIP-516), which the client library does not know.
"""

import uuid
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import for_code

from trinity_bus.bus.internals import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Request,
    RequestStruct,
    Response,
    Schema,
    TaggedFields,
    ask,
)

_API_KEY = 3
_API_VERSION = 12
_NO_ID = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """What tells one log from another."""

    cluster: str
    """Kafka's id of the cluster."""
    topic: str
    """Its id of the topic, a UUID."""


class _Uuid(AbstractType[uuid.UUID]):  # type: ignore[misc]  # the client library is untyped here
    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        return uuid.UUID(bytes=data.read(16))

    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        return value.bytes


class _Response(Response):  # type: ignore[misc]  # likewise
    API_KEY = _API_KEY
    API_VERSION = _API_VERSION
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _RequestV12(RequestStruct):  # type: ignore[misc]  # likewise
    FLEXIBLE_VERSION = True
    API_KEY = _API_KEY
    API_VERSION = _API_VERSION
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _Request(Request[_RequestV12]):  # type: ignore[misc]  # likewise
    API_KEY = _API_KEY

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[_RequestV12]) -> _RequestV12:
        return request_struct_class([(_NO_ID, self._topic, {})], False, False, {})


async def identity_of(admin: AIOKafkaAdminClient, topic: str) -> LogIdentity:
    """Asks a broker which log this is.

    Args:
        admin: Connected.
        topic: Full name of a topic that exists.

    Raises:
        aiokafka.errors.KafkaError: It does not say.
    """
    answer: Any = await ask(admin, _Request(topic))
    (found,) = answer.topics
    error_code, _, topic_id, *_ = found
    if error_code:
        raise for_code(error_code)(f"describe topic {topic}")
    return LogIdentity(cluster=answer.cluster_id or "", topic=str(topic_id))
