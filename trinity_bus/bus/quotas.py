"""Kafka's request to bound what users send and read, ``AlterClientQuotas`` version 0, which the client library lacks.

Brokers slow a user down that goes over its quota; they refuse nothing. Source: KIP-546.
"""

from collections.abc import Mapping
from typing import Final

from trinity_bus.bus.internals import (
    Array,
    Boolean,
    Float64,
    Int16,
    Int32,
    Request,
    RequestStruct,
    Response,
    Schema,
    String,
)

_API_KEY: Final = 49
_USER: Final = "user"

WRITE: Final = "producer_byte_rate"  # bytes a second that a user sends to one broker
READ: Final = "consumer_byte_rate"  # bytes a second that it reads from one
REQUESTS: Final = "request_percentage"  # percent of the time of one of the broker's threads that its requests take

_ENTITY = Array(("entity_type", String("utf-8")), ("entity_name", String("utf-8")))


class _Response(Response):  # type: ignore[misc]  # the client library is untyped here
    API_KEY = _API_KEY
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("entries", Array(("error_code", Int16), ("error_message", String("utf-8")), ("entity", _ENTITY))),
    )


class _RequestV0(RequestStruct):  # type: ignore[misc]  # likewise
    API_KEY = _API_KEY
    API_VERSION = 0
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(
        (
            "entries",
            Array(
                ("entity", _ENTITY),
                ("ops", Array(("key", String("utf-8")), ("value", Float64), ("remove", Boolean))),
            ),
        ),
        ("validate_only", Boolean),
    )


class SetQuotas(Request[_RequestV0]):  # type: ignore[misc]  # likewise
    """The request: user to quota to its value, None takes it away. Its response has an entry for each user."""

    API_KEY = _API_KEY

    def __init__(self, quotas: Mapping[str, Mapping[str, float | None]]) -> None:
        self._quotas = quotas

    def build(self, request_struct_class: type[_RequestV0]) -> _RequestV0:
        rows = [
            ([(_USER, user)], [(name, 0.0 if value is None else value, value is None) for name, value in own.items()])
            for user, own in self._quotas.items()
        ]
        return request_struct_class(rows, False)
