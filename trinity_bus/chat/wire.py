"""Requests to an engine and their answers, as bytes: between a runner and its explorer, and over HTTP. Pure.

::

    a runner --EngineRequest(ask)--> its explorer --RequestAnswered(frames)-->        (``trinity_bus.runners.messages``)
    a gateway, or an explorer of another pool --POST: ask--> an explorer --> 200, frames
        Ask:      a DrawnFrame for each response; streamed, more of them, the last of a response with its finish reason
        ChatAsk:  a SaidFrame
        ScoreAsk: a ScoredFrame
        amid a stream, and to a runner: FailedFrame
        401 wrong key; 400 refused; 413 too large; 503 going down, or its engine is gone; 500 failed: text

Token ids (int32) and log-probabilities (float32) are raw little-endian buffers. Whoever changes what is said here must
raise the number in ``gateway.fleet``, by which explorers and gateways of other versions pass each other by.
Failures: what is longer than its limit, or cannot be read, is a ``ProtocolError``.
"""

from typing import Annotated, Any, Final

import msgspec
import numpy as np

from schemas.errors import encodable
from schemas.experience import UInt8
from schemas.groups.kept import MAX_KEPT_BYTES, decode_kept, extended
from schemas.groups.vectors import FLOAT32, INT32, UINT8, VectorColumn
from schemas.record import MAX_VERSION
from schemas.sampling import Sampling
from trinity_bus.chat.messages import Completion
from trinity_bus.runtime.frames import Dialect, FrameReader, ProtocolError

PATH: Final = "/generate"
# Where it proves, before anything is sent to it, that it is who its heartbeat says: see ``gateway.fleet``.
PROOF_PATH: Final = "/proof"
MAX_ASK_BYTES: Final = 32 << 20
MAX_FRAME_BYTES: Final = 64 << 20
MAX_ROUTES_BYTES: Final = 32 << 20  # of one response over HTTP; what is larger is not told

type _Count = Annotated[int, msgspec.Meta(ge=0)]
type _Size = Annotated[int, msgspec.Meta(ge=1)]
type _Version = Annotated[int, msgspec.Meta(ge=-1, le=MAX_VERSION)]


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="draw"):
    prompt: bytes  # int32
    sampling: bytes  # a ``Sampling``, as JSON
    n: int = 1
    stream: bool = False
    trained: bool = False  # whether it may be, so that it is told from which tokens each was drawn


class ChatAsk(msgspec.Struct, frozen=True, array_like=True, tag="chat"):
    """A request: answer a conversation, written by the explorer's own tokenizer."""

    messages: bytes  # OpenAI's shape, as JSON
    sampling: bytes


class ScoreAsk(msgspec.Struct, frozen=True, array_like=True, tag="score"):
    """A request: say how likely the tokens of a sequence are, each after those before it, at temperature 1."""

    tokens: bytes  # int32
    start: int  # the first whose probability is wanted


class Routes(msgspec.Struct, frozen=True, array_like=True):
    """Which experts were chosen for each token that the engine has run: prompt and response, but the last."""

    experts: bytes  # uint8, of [tokens, layers, k]
    layers: _Size
    k: _Size


class DrawnFrame(msgspec.Struct, frozen=True, array_like=True, tag="drawn"):
    """What one response has got more."""

    index: _Count
    token_ids: bytes  # int32
    logprobs: bytes  # float32
    version: _Version = -1  # that the explorer serves now; -1 for none that is known
    finish_reason: Annotated[str, msgspec.Meta(max_length=64)] | None = None  # of the last of a response
    # (first token, version) of the whole response, told with its last frame
    versions: list[tuple[_Count, _Version]] = []
    # Of the whole response and its prompt, told with its last frame where the engine records them.
    routes: Routes | None = None
    # From which tokens these were drawn, where something limited that: see ``schemas.groups.kept``.
    kept: Annotated[bytes, msgspec.Meta(max_length=MAX_KEPT_BYTES)] | None = None


class FailedFrame(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    reason: str
    kind: str = "GenerationError"  # name of the error's type


class SaidFrame(msgspec.Struct, frozen=True, array_like=True, tag="said"):
    text: str  # without reasoning and special tokens


class ScoredFrame(msgspec.Struct, frozen=True, array_like=True, tag="scored"):
    logprobs: bytes  # float32


type AnyAsk = Ask | ChatAsk | ScoreAsk
type Frame = DrawnFrame | FailedFrame | SaidFrame | ScoredFrame

ASKS: Dialect[AnyAsk] = Dialect(Ask | ChatAsk | ScoreAsk, limit=MAX_ASK_BYTES)
FRAMES: Dialect[Frame] = Dialect(DrawnFrame | FailedFrame | SaidFrame | ScoredFrame, limit=MAX_FRAME_BYTES)


def decode_frame(body: bytes) -> Frame:
    frame = FRAMES.decode(body)
    if isinstance(frame, DrawnFrame):
        if len(frame.token_ids) != len(frame.logprobs):
            raise ProtocolError("a frame with other tokens than log-probabilities")
        if _vector(frame.token_ids, INT32).min(initial=0) < 0:
            raise ProtocolError("a frame with what is no token")
        if frame.routes is not None and len(frame.routes.experts) % (frame.routes.layers * frame.routes.k):
            raise ProtocolError("a frame with routes of a part of a token")
        if frame.kept is not None:
            try:
                decode_kept(frame.kept, len(frame.token_ids) // INT32.itemsize)
            except ValueError as error:
                raise ProtocolError(f"a frame with {error}") from error
    elif isinstance(frame, ScoredFrame):
        _vector(frame.logprobs, FLOAT32)
    return frame


def frame_reader() -> FrameReader:
    return FrameReader(MAX_FRAME_BYTES)


def failed(error: Exception) -> FailedFrame:
    """Return why a request has failed, as a frame: the text of an engine's error may be any."""
    return FailedFrame(encodable(str(error)), type(error).__name__)


def token_bytes(token_ids: Any) -> bytes:
    """Return a vector of token ids as its buffer; ValueError, TypeError or OverflowError where it is none."""
    return _bytes(token_ids, INT32)


def logprob_bytes(logprobs: Any) -> bytes:
    return _bytes(logprobs, FLOAT32)


def sampling_bytes(sampling: Sampling) -> bytes:
    return sampling.model_dump_json(exclude_none=True).encode()


def tokens_of(data: bytes) -> list[int]:
    """Return the token ids in a buffer; ProtocolError where they are no whole number of elements."""
    token_ids: list[int] = _vector(data, INT32).tolist()
    return token_ids


def logprobs_of(data: bytes) -> list[float]:
    logprobs: list[float] = _vector(data, FLOAT32).tolist()
    return logprobs


def frame_of(drawn: Completion, index: int = 0, version: int = -1, most_routes: int | None = None) -> DrawnFrame:
    """Return a response, or what is new of it, as a frame; without routes of more bytes than ``most_routes``."""
    routes = drawn.routes
    if routes is not None and most_routes is not None and routes.nbytes > most_routes:
        routes = None
    return DrawnFrame(
        index,
        token_bytes(drawn.token_ids),
        logprob_bytes(drawn.logprobs),
        version,
        drawn.finish_reason or None,
        drawn.versions,
        None if routes is None else Routes(routes.tobytes(), *routes.shape[1:]),
        None if drawn.kept is None or len(drawn.kept) > MAX_KEPT_BYTES else bytes(drawn.kept),
    )


def completion_of(frame: DrawnFrame) -> Completion:
    """Return a response that came as one frame."""
    drawn = Completion()
    take_frame(drawn, frame)
    return drawn


def take_frame(drawing: Completion, frame: DrawnFrame, settled: int = 0) -> list[int]:
    """Take what has come of a response, whose first tokens are of explorers that were cut off; return its tokens.

    Of one that was gone on with, the routes are those of the explorer that ended it, which has run all tokens before.
    """
    new = tokens_of(frame.token_ids)
    _note_version(drawing, len(drawing.token_ids), frame.version)
    drawing.kept = extended(drawing.kept, len(drawing.token_ids), frame.kept, len(new))
    drawing.token_ids += new
    drawing.logprobs += logprobs_of(frame.logprobs)
    if frame.finish_reason is not None:
        drawing.finish_reason = frame.finish_reason
        drawing.versions = [span for span in drawing.versions if span[0] < settled]
        for start, version in frame.versions:
            _note_version(drawing, settled + start, version)
        drawing.routes = None if frame.routes is None else routes_of(frame.routes)
    return new


def routes_of(told: Routes) -> UInt8:
    """Return the routes that were told, [tokens, layers, k]."""
    routes: UInt8 = np.frombuffer(told.experts, UINT8).reshape(-1, told.layers, told.k)
    return routes


def _note_version(drawing: Completion, start: int, version: int) -> None:
    if version >= 0 and (not drawing.versions or drawing.versions[-1][1] != version):
        drawing.versions.append((start, version))


def _bytes(values: Any, dtype: np.dtype[Any]) -> bytes:
    column = VectorColumn(dtype)
    column.add(values)
    return column.buffer.tobytes()


def _vector(data: bytes, dtype: np.dtype[Any]) -> Any:
    if len(data) % dtype.itemsize:
        raise ProtocolError(f"{len(data)} bytes are no vector of elements of {dtype.itemsize}")
    return np.frombuffer(data, dtype)
