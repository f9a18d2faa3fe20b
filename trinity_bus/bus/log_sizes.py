"""How many bytes partitions take on the brokers' disks: a request that the client library does not have.

Needs ``Describe`` on the cluster where rights are checked; without it brokers answer as if they had nothing.
"""

from collections.abc import Mapping, Sequence

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Int64, Schema, String

_API_KEY = 35


class _Response(Response):  # type: ignore[misc]  # the client library is untyped here
    API_KEY = _API_KEY
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            Array(
                ("error_code", Int16),
                ("log_dir", String("utf-8")),
                (
                    "topics",
                    Array(
                        ("name", String("utf-8")),
                        (
                            "partitions",
                            Array(
                                ("partition_index", Int32),
                                ("partition_size", Int64),
                                ("offset_lag", Int64),
                                ("is_future_key", Boolean),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    )


class _RequestV1(RequestStruct):  # type: ignore[misc]  # likewise
    API_KEY = _API_KEY
    API_VERSION = 1
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(("topics", Array(("topic", String("utf-8")), ("partitions", Array(Int32)))))


class DescribeLogDirs(Request[_RequestV1]):  # type: ignore[misc]  # likewise
    """The request.

    Args:
        topics: Full name to number of partitions.
    """

    API_KEY = _API_KEY

    def __init__(self, topics: Mapping[str, int]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[_RequestV1]) -> _RequestV1:
        """As the client library wants it."""
        return request_struct_class([(name, list(range(count))) for name, count in self._topics.items()])


async def sizes(
    admin: AIOKafkaAdminClient, topics: Mapping[str, int], nodes: Sequence[int]
) -> dict[tuple[str, int], int]:
    """Bytes of each partition: of its largest copy. Those that no broker tells of are absent.

    Args:
        admin: Connected.
        topics: Full name to number of partitions.
        nodes: The brokers.

    Raises:
        KafkaError: A broker does not answer.
    """
    found: dict[tuple[str, int], int] = {}
    for node in nodes:
        response = await admin._send_request_to_node(node, DescribeLogDirs(topics))  # noqa: SLF001 - no other way
        for _, _, held in response.results:
            for name, partitions in held:
                for partition, size, _, is_future in partitions:
                    if not is_future:
                        found[name, partition] = max(size, found.get((name, partition), 0))
    return found
