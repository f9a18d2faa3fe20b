"""What a gateway asks an explorer over HTTP, and what it is answered, as bytes. Pure.

::

    gateway --POST /generate: Ask--------------------------------> explorer
            <--200, frames: DrawnFrame, DrawnFrame, ... , the last of each response with its finish reason
            <--200, ... FailedFrame: the engine failed amid it
            <--401 wrong key; 400 refused; 413 too large; 503 going down, or its engine is gone; 500 failed: text

A frame is its length, four bytes, little-endian, and msgpack. Where the answer is not streamed there is one frame for
each response. What is longer than its limit, or is no frame, is a ``AskError``.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from schemas.numbers import MAX_VERSION
from schemas.vectors import FLOAT32, INT32
from trinity_bus.errors import TrinityError

PATH: Final = "/generate"
MAX_ASK_BYTES: Final = 32 << 20
MAX_FRAME_BYTES: Final = 64 << 20
MAX_RESPONSES: Final = 1024
"""Of one request."""
_LENGTH_BYTES: Final = 4
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

type _Count = Annotated[int, msgspec.Meta(ge=0)]
type _Version = Annotated[int, msgspec.Meta(ge=-1, le=MAX_VERSION)]


class AskError(TrinityError, ValueError):
    """Bytes that are no frame, or are too many."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request: draw responses to a prompt."""

    prompt: bytes
    """int32, little-endian."""
    sampling: dict[str, Any]
    """A ``Sampling``."""
    n: int = 1
    stream: bool = False


class DrawnFrame(msgspec.Struct, frozen=True, kw_only=True, tag="drawn"):
    """What one response has got more."""

    index: _Count
    token_ids: bytes
    """int32, little-endian."""
    logprobs: bytes
    """float32, little-endian."""
    version: _Version
    """That the explorer serves now; -1 for none that is known."""
    finish_reason: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    """Of the last of a response."""
    versions: list[tuple[_Count, _Version]] = []
    """(first token, version) of the whole response, told with its last frame."""


class FailedFrame(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The engine failed after it had begun."""

    reason: str


type Frame = DrawnFrame | FailedFrame

_ENCODER = msgspec.msgpack.Encoder()
_FRAMES: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(DrawnFrame | FailedFrame)
_ASKS = msgspec.msgpack.Decoder(Ask)


def encode_ask(ask: Ask) -> bytes:
    """Return a request's body."""
    return _ENCODER.encode(ask)


def decode_ask(body: bytes) -> Ask:
    """Read a request's body.

    Raises:
        AskError: It is none.
    """
    try:
        ask = _ASKS.decode(body)
    except _UNREADABLE as error:
        raise AskError(f"no request: {error}") from error
    if not 1 <= ask.n <= MAX_RESPONSES:
        raise AskError(f"n is {ask.n}; from 1 to {MAX_RESPONSES}")
    if len(ask.prompt) % INT32.itemsize:
        raise AskError(f"a prompt of {len(ask.prompt)} bytes is no vector of int32")
    return ask


def encode_frame(frame: Frame) -> bytes:
    """Return a frame."""
    body = _ENCODER.encode(frame)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class FrameFeed:
    """Reads frames out of bytes as they arrive."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Return the frames that are whole now.

        Raises:
            AskError: It is none, or too large.
        """
        self._held += data
        while len(self._held) >= _LENGTH_BYTES:
            length = int.from_bytes(self._held[:_LENGTH_BYTES], "little")
            if length > MAX_FRAME_BYTES:
                raise AskError(f"a frame of {length} bytes, {MAX_FRAME_BYTES} are the most")
            end = _LENGTH_BYTES + length
            if len(self._held) < end:
                return
            body = bytes(self._held[_LENGTH_BYTES:end])
            del self._held[:end]
            try:
                frame = _FRAMES.decode(body)
            except _UNREADABLE as error:
                raise AskError(f"no frame: {error}") from error
            if isinstance(frame, DrawnFrame) and (
                len(frame.token_ids) != len(frame.logprobs) or len(frame.token_ids) % 4
            ):
                raise AskError("a frame with other tokens than log-probabilities")
            if isinstance(frame, DrawnFrame) and np.frombuffer(frame.token_ids, INT32).min(initial=0) < 0:
                raise AskError("a frame with what is no token")
            yield frame


def token_bytes(token_ids: Any) -> bytes:
    """Return token ids as bytes."""
    return np.asarray(token_ids, INT32).tobytes()


def logprob_bytes(logprobs: Any) -> bytes:
    """Return log-probabilities as bytes."""
    return np.asarray(logprobs, FLOAT32).tobytes()


def tokens_of(data: bytes) -> list[int]:
    """Return the token ids in bytes."""
    token_ids: list[int] = np.frombuffer(data, INT32).tolist()
    return token_ids


def logprobs_of(data: bytes) -> list[float]:
    """Return the log-probabilities in bytes."""
    logprobs: list[float] = np.frombuffer(data, FLOAT32).tolist()
    return logprobs
