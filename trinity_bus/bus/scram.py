"""Kafka's request to set passwords, ``AlterUserScramCredentials`` version 0, which the client library lacks.

Brokers are given a salted hash; the password itself is never sent. Sources: KIP-554 for the request, RFC 5802, section
3, for ``SaltedPassword``.
"""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Final

from trinity_bus.bus.internals import (
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Request,
    RequestStruct,
    Response,
    Schema,
    TaggedFields,
)

_API_KEY: Final = 51
_SHA_512: Final = 2  # Kafka's number of SCRAM-SHA-512
ITERATIONS: Final = 8192  # brokers refuse fewer than 4,096 and more than 16,384
_SALT_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Credential:
    user: str
    salt: bytes
    salted: bytes  # 64 bytes
    iterations: int


def credential(user: str, password: str, *, salt: bytes | None = None, iterations: int = ITERATIONS) -> Credential:
    """Return a user's password as brokers keep it; with a new random salt, unless one is given."""
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    return Credential(user, salt, hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations), iterations)


class _Response(Response):  # type: ignore[misc]  # the client library is untyped here
    API_KEY = _API_KEY
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            CompactArray(
                ("user", CompactString("utf-8")),
                ("error_code", Int16),
                ("error_message", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _RequestV0(RequestStruct):  # type: ignore[misc]  # likewise
    FLEXIBLE_VERSION = True
    API_KEY = _API_KEY
    API_VERSION = 0
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(
        (
            "deletions",
            CompactArray(("name", CompactString("utf-8")), ("mechanism", Int8), ("tags", TaggedFields)),
        ),
        (
            "upsertions",
            CompactArray(
                ("name", CompactString("utf-8")),
                ("mechanism", Int8),
                ("iterations", Int32),
                ("salt", CompactBytes),
                ("salted_password", CompactBytes),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class SetCredentials(Request[_RequestV0]):  # type: ignore[misc]  # likewise
    """The request. Its response has a result for each user."""

    API_KEY = _API_KEY

    def __init__(self, credentials: list[Credential]) -> None:
        self._credentials = credentials

    def build(self, request_struct_class: type[_RequestV0]) -> _RequestV0:
        tags: dict[int, bytes] = {}
        rows = [(c.user, _SHA_512, c.iterations, c.salt, c.salted, tags) for c in self._credentials]
        return request_struct_class([], rows, tags)
