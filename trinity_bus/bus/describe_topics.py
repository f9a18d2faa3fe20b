"""Kafka's question for topics, ``Metadata`` version 12, of which the client library knows no more than version 5.

Sources: KIP-430 (Kafka 2.3) for what the asking user may do with each topic, KIP-516 (Kafka 2.8) for their ids.
"""

import uuid
from collections.abc import Sequence
from io import BytesIO

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
)

_API_KEY = 3
_API_VERSION = 12
_NO_ID = uuid.UUID(int=0)


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


class DescribeTopics(Request[_RequestV12]):  # type: ignore[misc]  # likewise
    """The request, to any broker. Of each topic the answer has error code, name, id, more, and rights as bits."""

    API_KEY = _API_KEY

    def __init__(self, topics: Sequence[str], *, rights: bool = False) -> None:
        self._topics = topics
        self._rights = rights

    def build(self, request_struct_class: type[_RequestV12]) -> _RequestV12:
        return request_struct_class([(_NO_ID, topic, {}) for topic in self._topics], False, self._rights, {})
