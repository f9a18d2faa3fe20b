"""What is asked of an explorer over HTTP, by gateways and by explorers of other pools, and the answers, as bytes. Pure.

::

    who asks --POST /generate: Ask-----> explorer --> 200, frames: DrawnFrame, DrawnFrame, ... , the last of each
                                                      response with its finish reason; FailedFrame: it failed amid it
             --POST /chat: ChatAsk-----> explorer --> 200, a SaidFrame
             --POST /score: ScoreAsk---> explorer --> 200, a ScoredFrame
    all of them: 401 wrong key; 400 refused; 413 too large; 503 going down, or its engine is gone; 500 failed: text

Frames are those of ``trinity_bus.runtime.frames``. Where an answer is not streamed there is one for each response. What
is longer than its limit, or cannot be read, is a ``ProtocolError``. Both sides are of one version of this project.
"""

from typing import Annotated, Any, Final

import msgspec
import numpy as np

from schemas.experience import UInt8
from schemas.groups.vectors import FLOAT32, INT32, UINT8
from schemas.record import MAX_VERSION
from trinity_bus.runtime.frames import Dialect, FrameReader, ProtocolError

PATH: Final = "/generate"
CHAT_PATH: Final = "/chat"
SCORE_PATH: Final = "/score"
# Where it proves, before anything is sent to it, that it is who its heartbeat says: see ``address_proof``.
PROOF_PATH: Final = "/proof"
MAX_ASK_BYTES: Final = 32 << 20
MAX_FRAME_BYTES: Final = 64 << 20
MAX_ROUTES_BYTES: Final = 32 << 20  # of one response; what is larger is not told
MAX_RESPONSES: Final = 1024  # of one request

type _Count = Annotated[int, msgspec.Meta(ge=0)]
type _Size = Annotated[int, msgspec.Meta(ge=1)]
type _Version = Annotated[int, msgspec.Meta(ge=-1, le=MAX_VERSION)]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    prompt: bytes  # int32, little-endian
    sampling: dict[str, Any]  # a ``Sampling``
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_RESPONSES)] = 1
    stream: bool = False


class ChatAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A request: answer a conversation, written by the explorer's own tokenizer."""

    messages: bytes  # OpenAI's shape, as JSON
    sampling: dict[str, Any]


class ScoreAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A request: say how likely the tokens of a sequence are, each after those before it, at temperature 1."""

    tokens: bytes  # int32, little-endian
    start: Annotated[int, msgspec.Meta(ge=1)]  # the first whose probability is wanted


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """Which experts were chosen for each token that the engine has run: prompt and response, but the last."""

    experts: Annotated[bytes, msgspec.Meta(max_length=MAX_ROUTES_BYTES)]  # uint8, of [tokens, layers, k]
    layers: _Size
    k: _Size


class DrawnFrame(msgspec.Struct, frozen=True, kw_only=True, tag="drawn"):
    """What one response has got more."""

    index: _Count
    token_ids: bytes  # int32, little-endian
    logprobs: bytes  # float32, little-endian
    version: _Version  # that the explorer serves now; -1 for none that is known
    finish_reason: Annotated[str, msgspec.Meta(max_length=64)] | None = None  # of the last of a response
    # (first token, version) of the whole response, told with its last frame
    versions: list[tuple[_Count, _Version]] = []
    # Of the whole response and its prompt, told with its last frame where the engine records them.
    routes: Routes | None = None


class FailedFrame(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The engine failed after it had begun."""

    reason: str


class SaidFrame(msgspec.Struct, frozen=True, kw_only=True, tag="said"):
    text: str  # without reasoning and special tokens


class ScoredFrame(msgspec.Struct, frozen=True, kw_only=True, tag="scored"):
    logprobs: bytes  # float32, little-endian


type Frame = DrawnFrame | FailedFrame | SaidFrame | ScoredFrame

ASKS: Dialect[Ask] = Dialect(Ask, limit=MAX_ASK_BYTES)
CHATS: Dialect[ChatAsk] = Dialect(ChatAsk, limit=MAX_ASK_BYTES)
SCORES: Dialect[ScoreAsk] = Dialect(ScoreAsk, limit=MAX_ASK_BYTES)
FRAMES: Dialect[Frame] = Dialect(DrawnFrame | FailedFrame | SaidFrame | ScoredFrame, limit=MAX_FRAME_BYTES)


def decode_frame(body: bytes) -> Frame:
    frame = FRAMES.decode(body)
    if isinstance(frame, DrawnFrame):
        if len(frame.token_ids) != len(frame.logprobs):
            raise ProtocolError("a frame with other tokens than log-probabilities")
        if np.frombuffer(vector(frame.token_ids), INT32).min(initial=0) < 0:
            raise ProtocolError("a frame with what is no token")
        if frame.routes is not None and len(frame.routes.experts) % (frame.routes.layers * frame.routes.k):
            raise ProtocolError("a frame with routes of a part of a token")
    elif isinstance(frame, ScoredFrame):
        vector(frame.logprobs)
    return frame


def frame_reader() -> FrameReader:
    return FrameReader(MAX_FRAME_BYTES)


def vector(data: bytes) -> bytes:
    """Return the bytes of a vector as they are; ProtocolError where they are no whole number of elements."""
    if len(data) % INT32.itemsize:
        raise ProtocolError(f"{len(data)} bytes are no vector of elements of {INT32.itemsize}")
    return data


def token_bytes(token_ids: Any) -> bytes:
    return np.asarray(token_ids, INT32).tobytes()


def logprob_bytes(logprobs: Any) -> bytes:
    return np.asarray(logprobs, FLOAT32).tobytes()


def told_routes(routes: UInt8 | None) -> Routes | None:
    """Return routes as they are told; None where there are none, or too many."""
    if routes is None or routes.nbytes > MAX_ROUTES_BYTES:
        return None
    _, layers, k = routes.shape
    return Routes(experts=routes.tobytes(), layers=layers, k=k)


def routes_of(told: Routes) -> UInt8:
    """Return the routes that were told, [tokens, layers, k]."""
    routes: UInt8 = np.frombuffer(told.experts, UINT8).reshape(-1, told.layers, told.k)
    return routes


def tokens_of(data: bytes) -> list[int]:
    token_ids: list[int] = np.frombuffer(vector(data), INT32).tolist()
    return token_ids


def logprobs_of(data: bytes) -> list[float]:
    logprobs: list[float] = np.frombuffer(data, FLOAT32).tolist()
    return logprobs
