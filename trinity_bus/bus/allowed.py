"""What this user may do with topics, asked of the brokers and tried on nothing: ``Metadata`` version 8.

Source: KIP-430 (Kafka 2.3). The client library asks up to version 5, which tells no rights. What a user may do with
a transactional id cannot be asked: to try it would end whoever has it.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient

from trinity_bus.bus.access import Operation
from trinity_bus.bus.connection import kafka_errors
from trinity_bus.bus.internals import (
    Array,
    Boolean,
    Int16,
    Int32,
    Request,
    RequestStruct,
    Response,
    Schema,
    String,
    ask,
)

_API_KEY: Final = 3
_NOT_TOLD: Final = -(2**31)
"""In place of rights, by a broker that was not asked for them."""


class _Response(Response):  # type: ignore[misc]  # the client library is untyped here
    API_KEY = _API_KEY
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            Array(("node_id", Int32), ("host", String("utf-8")), ("port", Int32), ("rack", String("utf-8"))),
        ),
        ("cluster_id", String("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String("utf-8")),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
        ("cluster_authorized_operations", Int32),
    )


class _RequestV8(RequestStruct):  # type: ignore[misc]  # likewise
    API_KEY = _API_KEY
    API_VERSION = 8
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(
        ("topics", Array(String("utf-8"))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class _DescribeRights(Request[_RequestV8]):  # type: ignore[misc]  # likewise
    API_KEY = _API_KEY

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = list(topics)

    def build(self, request_struct_class: type[_RequestV8]) -> _RequestV8:
        return request_struct_class(self._topics, False, False, True)


async def allowed(admin: AIOKafkaAdminClient, topics: Sequence[str]) -> dict[str, frozenset[Operation]]:
    """Return what this user may do with each of some topics; those that it may not see are left out.

    Args:
        admin: Started.
        topics: Their names, with the namespace. Without a single one, nothing is asked.

    Raises:
        BusError: The brokers do not answer.
    """
    if not topics:
        return {}
    with kafka_errors("ask for rights"):
        answer = await ask(admin, _DescribeRights(topics))
    return {
        name: frozenset(_operations(bits))
        for error, name, _, _, bits in answer.topics
        if not error and bits != _NOT_TOLD
    }


def _operations(bits: int) -> Iterator[Operation]:
    return (operation for operation in Operation if bits >> operation & 1)
