"""What processes say to each other beside the log: msgspec structs, in frames, between an encoder and a decoder.

The types of the messages are beside who uses them; a :class:`Dialect` is what one side of a connection may say::

    on a stream:             length of the body, 4 bytes, the highest first; the body
    on a socket of datagrams: the body alone
    body:                    one message as msgpack; or, where both sides know, a record as it is on the log

The two sides are of one version of this project, and say none; those of weights do: ``trinity_bus.weights.channel``.
A body over its limit is refused before it is sent, and by its length before any of it is kept. That, and whatever is no
message, is a :class:`ProtocolError`: the other side may be user code.
"""

import struct
from collections.abc import Iterator
from typing import IO, Any

import msgspec

from trinity_bus.errors import TrinityError

HEAD = struct.Struct(">I")
# what the parser raises for bytes that are no message
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)

_ENCODER = msgspec.msgpack.Encoder()


class ProtocolError(TrinityError):
    """The other side said what cannot be understood or what it must not say; or this one was about to."""


class Dialect[M]:
    """What one side may say: messages of a struct or a union of them, with at most ``limit`` bytes of a body.

    ``error``: what is raised for what is over the limit, or no message.
    """

    def __init__(self, kinds: Any, *, limit: int, error: type[ProtocolError] = ProtocolError) -> None:
        self.limit = limit
        self._error = error
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kinds)

    def encode(self, message: M) -> bytes:
        body = _ENCODER.encode(message)
        _check(len(body), self.limit, "message", self._error)
        return body

    def frame(self, message: M) -> bytes:
        buffer = bytearray()
        self.append(buffer, message)
        return bytes(buffer)

    def append(self, buffer: bytearray, message: M) -> None:
        """Write a message as a frame behind what is in ``buffer``, which is as it was after a ProtocolError."""
        start = len(buffer)
        buffer.extend(bytes(HEAD.size))
        try:
            _ENCODER.encode_into(message, buffer, start + HEAD.size)
            size = len(buffer) - start - HEAD.size
            _check(size, self.limit, "message", self._error)
        except BaseException:
            del buffer[start:]
            raise
        HEAD.pack_into(buffer, start, size)

    def decode(self, body: bytes) -> M:
        _check(len(body), self.limit, "message", self._error)
        try:
            return self._decoder.decode(body)
        except UNREADABLE as error:
            raise self._error(f"a message that cannot be read: {error}") from error


class FrameReader:
    """Puts frames together from whatever pieces a socket gives."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Return the bodies that are complete with ``data``; ProtocolError where a frame is longer than any may be."""
        # Nearly always, a piece is whole frames.
        source = data
        if self._pending:
            self._pending += data
            source = bytes(self._pending)
            self._pending.clear()
        start = 0
        while (body := start + HEAD.size) <= len(source):
            size = _size(source[start:body], self._limit)
            if body + size > len(source):
                break
            yield source[body : body + size]
            start = body + size
        self._pending += source[start:]


def head_of(body: bytes, limit: int) -> bytes:
    """Return what comes before a body that is a record already; ProtocolError where it is over the limit."""
    _check(len(body), limit, "message")
    return HEAD.pack(len(body))


def read_frame(file: IO[bytes], limit: int) -> bytes | None:
    """Return the next body; None where the other side has ended, also in the midst of one. Raises ProtocolError."""
    try:
        head = file.read(HEAD.size)
        if len(head) < HEAD.size:
            return None
        size = _size(head, limit)
        body = file.read(size)
    except ConnectionResetError:
        # It ended before it had read everything.
        return None
    return body if len(body) == size else None


def _size(head: bytes, limit: int) -> int:
    size: int = HEAD.unpack(head)[0]
    _check(size, limit, "frame")
    return size


def _check(size: int, limit: int, what: str, error: type[ProtocolError] = ProtocolError) -> None:
    if size > limit:
        raise error(f"a {what} of {size} bytes, at most {limit} are allowed")
