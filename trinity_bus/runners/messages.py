"""What an explorer and a runner say to each other, over the socket between them.

::

    explorer                                       runner
       │ Run(job) ───────────────────────────────────> │  the workflow starts
       │ <──────────────────────── Generate(job, request)  any number, several at once
       │ Completions(job, request) or EngineFailed ──> │
       │ <─────────────── Chat or Score(job, request)  of explorers of another pool, as Generate may be
       │ Chatted, Scored(job, request), EngineFailed > │
       │ <──────────────────────── KeepTurn(job, request)  a turn of a run is over
       │ TurnKept(job, request) or EngineFailed ─────> │  it is durable
       │ <───────────────────────── Abandon(job, request)  nobody waits for it any more: the engine drops it
       │ CancelRun(job) ─────────────────────────────> │  the workflow is cancelled
       │ <────────────── Done, Failed or Cancelled(job) │  exactly one for each Run
       │ Ping ───────────────────────────────────────> │
       │ <────────────────────────── Pong(states, worn) │  also the first thing that it says, unasked

A *job* is one attempt in one runner, numbered by the explorer; a *request* is numbered by the runner, within its job.

They are frames (``trinity_bus.runtime.frames``), each a msgpack array that begins with the number of its type. Token
ids (int32) and logprobs (float32) are raw little-endian buffers, never arrays of msgpack; what comes from a topic and
what goes to one, dispatches and experiences, is the record's own bytes.

Failures: what is no message, or a buffer that is no vector, is a ``ProtocolError``. Who hears one stops the other side.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct

from schemas.errors import DecodeError
from schemas.experience import ExperienceGroup
from schemas.fields.memory_estimate import SMALL, MemoryEstimate, estimate_msgpack
from schemas.groups.vectors import FLOAT32, INT32, UINT8, VectorColumn
from trinity_bus.chat.messages import Completion
from trinity_bus.runtime.frames import UNREADABLE, Dialect, ProtocolError

MAX_FRAME_BYTES = ExperienceGroup.MAX_BYTES + (64 << 10)  # the largest is a record, with a little around it

# Of all turns of one attempt: beside its order they fit into one frame.
MAX_TURNS_BYTES = 32 << 20

MAX_STATES_BYTES = 1 << 20  # of a ``Pong``

type _Length = Annotated[int, Meta(ge=0)]


class Run(Struct, tag=1, array_like=True, gc=False, frozen=True):
    job: int
    order: bytes  # the ``Dispatch``, as it came off the log
    version: int  # that the engine serves; -1: none
    traceparent: str | None
    turns: list[bytes] = []  # what earlier attempts at these runs have completed, as it came off the log


class CancelRun(Struct, tag=2, array_like=True, gc=False, frozen=True):
    """Cancel it. The answer to its ``Run`` still comes."""

    job: int


class Drawn(Struct, array_like=True, gc=False, frozen=True):
    tokens: _Length
    finish_reason: str
    versions: list[tuple[int, int]]
    routes: tuple[_Length, _Length, _Length] | None = None  # shape of its routes, where there are any


class Completions(Struct, tag=3, array_like=True, gc=False, frozen=True):
    """What the engine drew. The numbers of all responses lie one after the other."""

    job: int
    request: int
    token_ids: memoryview
    logprobs: memoryview
    drawn: list[Drawn]
    routes: memoryview = memoryview(b"")


class EngineFailed(Struct, tag=4, array_like=True, gc=False, frozen=True):
    job: int
    request: int
    kind: str  # name of the error's type
    message: str


class Ping(Struct, tag=5, array_like=True, gc=False, frozen=True):
    """Are you there?"""


class Generate(Struct, tag=6, array_like=True, gc=False, frozen=True):
    job: int
    request: int
    prompt: memoryview
    sampling: bytes  # as JSON
    n: int
    traceparent: str | None
    pool: str | None = None  # whose explorers draw them; None: this one


class AbandonRequest(Struct, tag=7, array_like=True, gc=False, frozen=True):
    job: int
    request: int


class RunDone(Struct, tag=8, array_like=True, gc=False, frozen=True):
    job: int
    group: bytes  # an ``ExperienceGroup``, encoded
    error: str | None  # the first one, where some runs broke off


class RunFailed(Struct, tag=9, array_like=True, gc=False, frozen=True):
    job: int
    kind: str
    message: str


class RunCancelled(Struct, tag=10, array_like=True, gc=False, frozen=True):
    """A workflow has ended because it was cancelled, whatever it did last."""

    job: int


class Pong(Struct, tag=11, array_like=True, gc=False, frozen=True):
    """I am here, and this is what workflows have set since I last said so."""

    states: dict[int, dict[str, Any]]  # by job
    # Whether something goes on here that nobody waits for any more, and that only the end of this process stops.
    worn: bool = False


class KeepTurn(Struct, tag=12, array_like=True, gc=False, frozen=True):
    job: int
    request: int
    turn: bytes  # a ``Turn``, encoded


class TurnKept(Struct, tag=13, array_like=True, gc=False, frozen=True):
    job: int
    request: int


class Chat(Struct, tag=14, array_like=True, gc=False, frozen=True):
    job: int
    request: int
    pool: str
    messages: bytes  # OpenAI's shape, as JSON
    sampling: bytes  # as JSON


class Score(Struct, tag=15, array_like=True, gc=False, frozen=True):
    job: int
    request: int
    pool: str
    tokens: memoryview
    start: int  # the first whose log-probability is wanted


class Chatted(Struct, tag=16, array_like=True, gc=False, frozen=True):
    job: int
    request: int
    text: str


class Scored(Struct, tag=17, array_like=True, gc=False, frozen=True):
    job: int
    request: int
    logprobs: memoryview


_PONG = b"\x0b"  # its tag, as it is on the wire

type Asked = Generate | Chat | Score | KeepTurn
type Answered = Completions | Chatted | Scored | TurnKept | EngineFailed
type ToRunner = Run | CancelRun | Ping | Answered
type ToExplorer = Asked | AbandonRequest | RunDone | RunFailed | RunCancelled | Pong

TO_RUNNER: Dialect[ToRunner] = Dialect(
    Run | CancelRun | Ping | Completions | Chatted | Scored | TurnKept | EngineFailed, limit=MAX_FRAME_BYTES
)
TO_EXPLORER: Dialect[ToExplorer] = Dialect(
    Generate | Chat | Score | KeepTurn | AbandonRequest | RunDone | RunFailed | RunCancelled | Pong,
    limit=MAX_FRAME_BYTES,
)


def to_explorer(body: bytes) -> ToExplorer:
    """Decode a frame of a runner; raises ProtocolError also for states that would take far more memory than bytes."""
    if body[1:2] == _PONG and len(body) > SMALL:
        _estimate_states(body)
    return TO_EXPLORER.decode(body)


def _estimate_states(body: bytes) -> None:
    """Everything else is typed, or a buffer; what workflows have set can be anything."""
    if len(body) > MAX_STATES_BYTES:
        raise ProtocolError(f"states of {len(body)} bytes, at most {MAX_STATES_BYTES} are allowed")
    try:
        msgspec.msgpack.decode(body, type=msgspec.Raw)
        estimate_msgpack(body, MemoryEstimate(len(body)))
    except (*UNREADABLE, DecodeError) as error:
        raise ProtocolError(f"states that cannot be read: {error}") from error


def pack_vector(values: Any, dtype: np.dtype[Any]) -> memoryview:
    """Return a vector as its raw buffer; raises ValueError, TypeError or OverflowError where it is none."""
    column = VectorColumn(dtype)
    column.add(values)
    return column.buffer


def unpack_vector(buffer: memoryview, dtype: np.dtype[Any]) -> Any:
    """Return the vector in a raw buffer, as a view of it; raises ProtocolError where it is none."""
    if len(buffer) % dtype.itemsize:
        raise ProtocolError(f"a buffer of {len(buffer)} bytes holds no vector of {dtype.itemsize} byte elements")
    return np.frombuffer(buffer, dtype)


class _Cuts:
    def __init__(self, buffer: memoryview, dtype: np.dtype[Any]) -> None:
        self._vector = unpack_vector(buffer, dtype)
        self._at = 0

    def next(self, length: int) -> Any:
        self._at += length
        return self._vector[self._at - length : self._at]

    def next_array(self, shape: tuple[int, ...] | None) -> Any:
        if shape is None:
            return None
        try:
            return self.next(math.prod(shape)).reshape(shape)
        except ValueError as error:
            raise ProtocolError(f"a buffer that ends within an array of {list(shape)}: {error}") from error

    def finish(self) -> None:
        if self._at != len(self._vector):
            raise ProtocolError(f"vectors of {self._at} elements in a buffer of {len(self._vector)}")


def pack_completions(job: int, request: int, completions: Sequence[Completion]) -> Completions:
    token_ids, logprobs, routes = VectorColumn(INT32), VectorColumn(FLOAT32), VectorColumn(UINT8)
    drawn = []
    for one in completions:
        logprobs.add(one.logprobs)
        shape = None
        if one.routes is not None:
            shape = one.routes.shape
            routes.add(one.routes.reshape(-1))
        drawn.append(Drawn(token_ids.add(one.token_ids), one.finish_reason, one.versions, shape))
    return Completions(job, request, token_ids.buffer, logprobs.buffer, drawn, routes.buffer)


def unpack_completions(message: Completions) -> list[Completion]:
    """Return responses as lists of plain numbers; raises ProtocolError where a buffer is not as long as its parts."""
    token_ids, logprobs = _Cuts(message.token_ids, INT32), _Cuts(message.logprobs, FLOAT32)
    routes = _Cuts(message.routes, UINT8)
    completions = [
        Completion(
            token_ids.next(one.tokens).tolist(),
            logprobs.next(one.tokens).tolist(),
            one.finish_reason,
            one.versions,
            routes.next_array(one.routes),
        )
        for one in message.drawn
    ]
    for cuts in (token_ids, logprobs, routes):
        cuts.finish()
    return completions
