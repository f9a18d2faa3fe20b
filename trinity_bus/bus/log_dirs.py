"""Kafka's question for its disks, ``DescribeLogDirs`` version 4, which the client library lacks.

Sources: KIP-113 for the request, KIP-827 (Kafka 3.3) for the bytes that a disk has and has left.
"""

from typing import Final

from trinity_bus.bus.internals import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Request,
    RequestStruct,
    Response,
    Schema,
    TaggedFields,
)

_API_KEY: Final = 35


class _Response(Response):  # type: ignore[misc]  # the client library is untyped here
    API_KEY = _API_KEY
    API_VERSION = 4
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "results",
            CompactArray(
                ("error_code", Int16),
                ("log_dir", CompactString("utf-8")),
                (
                    "topics",
                    CompactArray(
                        ("name", CompactString("utf-8")),
                        (
                            "partitions",
                            CompactArray(
                                ("partition_index", Int32),
                                ("partition_size", Int64),
                                ("offset_lag", Int64),
                                ("is_future_key", Boolean),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("total_bytes", Int64),
                ("usable_bytes", Int64),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _RequestV4(RequestStruct):  # type: ignore[misc]  # likewise
    FLEXIBLE_VERSION = True
    API_KEY = _API_KEY
    API_VERSION = 4
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeLogDirs(Request[_RequestV4]):  # type: ignore[misc]  # likewise
    """The request, to one broker: its disks, and how much of these partitions (by full topic name) is on each."""

    API_KEY = _API_KEY

    def __init__(self, partitions: dict[str, list[int]]) -> None:
        self._partitions = partitions

    def build(self, request_struct_class: type[_RequestV4]) -> _RequestV4:
        tags: dict[int, bytes] = {}
        rows = [(topic, numbers, tags) for topic, numbers in self._partitions.items()]
        return request_struct_class(rows, tags)
