"""The messages of a pull: a request, an answer, then raw bytes. msgpack; nothing can run code.

::

    member                                                             trainer
      |== both prove themselves: see ``channel`` =======================|
      |-- Request: version, checksum, what I hold --------------------->|
      |<- Answer: refused, or manifest and the changes' table ----------|
      |<- bytes of every bucket in order; or the payload of a delta ----|
      |                                              (the connection closes)

Every length is looked at before memory is taken. Failures: ``WireError`` for what is too long or no message; whoever
gets it closes the connection.
"""

import struct
from dataclasses import asdict, dataclass
from typing import Any, Self

import msgpack

from trinity_bus.weights.delta import Change
from trinity_bus.weights.errors import WireError
from trinity_bus.weights.manifest import MAX_MANIFEST_BYTES

LENGTH = struct.Struct(">I")
MAX_REQUEST_BYTES = 4096
MAX_ANSWER_BYTES = 2 * MAX_MANIFEST_BYTES
_MAX_TEXT = 512


@dataclass(frozen=True, slots=True)
class WeightsRequest:
    """What a member asks for."""

    version: int
    checksum: str
    held: str | None
    """Checksum of the version that it holds, to which a delta may be sent."""

    def pack(self) -> bytes:
        """As a message.

        Raises:
            WireError: It is too long.
        """
        return _packed(asdict(self), MAX_REQUEST_BYTES)

    @classmethod
    def unpack(cls, body: bytes) -> Self:
        """Parse and check a message.

        Raises:
            WireError: It is not a request.
        """
        match parse_map(body):
            case {"version": int(version), "checksum": str(checksum), "held": None | str() as held}:
                return cls(version, checksum[:_MAX_TEXT], held)
            case _:
                raise WireError("not a request for weights")


@dataclass(frozen=True, slots=True)
class WeightsAnswer:
    """What the trainer says before the bytes."""

    refusal: str = ""
    """Why nothing follows; empty where something does."""
    manifest: bytes = b""
    """As JSON; see ``manifest``."""
    changes: tuple[Change, ...] | None = None
    """Where not None, what follows is the payload of a delta to what the member holds."""

    def pack(self) -> bytes:
        """As a message.

        Raises:
            WireError: It is too long.
        """
        changes = None if self.changes is None else [[c.tensor, c.count, c.width] for c in self.changes]
        return _packed({"refusal": self.refusal, "manifest": self.manifest, "changes": changes}, MAX_ANSWER_BYTES)

    @classmethod
    def unpack(cls, body: bytes) -> Self:
        """Parse and check a message. Whether changes fit the manifest is not looked at.

        Raises:
            WireError: It is not an answer.
        """
        match parse_map(body):
            case {"refusal": str(refusal), "manifest": bytes(manifest), "changes": None | list() as rows}:
                return cls(refusal[:_MAX_TEXT], manifest, None if rows is None else parse_changes(rows))
            case _:
                raise WireError("not an answer about weights")


def body_length(prefix: bytes, limit: int) -> int:
    """Return what a message's first bytes say about the length of the rest.

    Raises:
        WireError: It is over ``limit``.
    """
    length: int = LENGTH.unpack(prefix)[0]
    if length > limit:
        raise WireError(f"a message of {length} bytes is over the limit of {limit}")
    return length


def parse_map(body: bytes) -> dict[str, object]:
    """Return a msgpack map.

    Raises:
        WireError: It is none.
    """
    try:
        fields = msgpack.unpackb(body)
    # msgpack raises a zoo of types, all of which mean the same.
    except Exception as error:
        raise WireError(f"a message is not msgpack: {error}") from error
    if not isinstance(fields, dict):
        raise WireError("a message is not a map")
    return fields


def parse_changes(rows: list[object]) -> tuple[Change, ...]:
    """Return the table of a delta. Whether it fits a layout is not looked at.

    Raises:
        WireError: It is none.
    """
    return tuple(_change(row) for row in rows)


def _change(row: object) -> Change:
    match row:
        case [int(tensor), int(count), int(width)]:
            return Change(tensor, count, width)
        case _:
            raise WireError("a change is not [tensor, count, width]")


def _packed(fields: dict[str, Any], limit: int) -> bytes:
    body: bytes = msgpack.packb(fields)
    if len(body) > limit:
        raise WireError(f"a message of {len(body)} bytes is over the limit of {limit}")
    return body
