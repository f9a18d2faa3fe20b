"""What an explorer and a runner say to each other, over the socket between them.

::

    explorer                                       runner
       │ Run(job) ───────────────────────────────────> │  the workflow starts
       │ <──────────────────── EngineRequest(job, number)  any number, several at once: of an engine, this explorer's or
       │                                               │  that of another pool, or to keep a turn of a run that is over
       │ RequestAnswered(job, number) ───────────────> │  frames of the engine; none: the turn is durable
       │ <────────────────── AbandonRequest(job, number)  nobody waits for it any more: the engine drops it
       │ CancelRun(job) ─────────────────────────────> │  the workflow is cancelled
       │ <────────────── Done, Failed or Cancelled(job) │  exactly one for each Run
       │ Ping ───────────────────────────────────────> │
       │ <────────────────────────── Pong(states, worn) │  also the first thing that it says, unasked

A *job* is one attempt in one runner, numbered by the explorer; a request is numbered by the runner, within its job.

They are frames (``trinity_bus.runtime.frames``), each a msgpack array that begins with the number of its type. Requests
and answers are those of ``trinity_bus.chat.wire``; what comes from a topic and what goes to one, dispatches, turns and
experiences, is the record's own bytes.

Failures: what is no message, or a buffer that is no vector, is a ``ProtocolError``. Who hears one stops the other side.
"""

from typing import Any

import msgspec
from msgspec import Struct

from schemas.errors import DecodeError
from schemas.experience import ExperienceGroup
from schemas.fields.memory_estimate import SMALL, MemoryEstimate, estimate_msgpack
from trinity_bus.chat.wire import Ask, ChatAsk, DrawnFrame, FailedFrame, SaidFrame, ScoreAsk, ScoredFrame
from trinity_bus.runtime.frames import UNREADABLE, Dialect, ProtocolError

MAX_FRAME_BYTES = ExperienceGroup.MAX_BYTES + (64 << 10)  # the largest is a record, with a little around it

# Of all turns of one attempt: beside its order they fit into one frame.
MAX_TURNS_BYTES = 32 << 20

MAX_STATES_BYTES = 1 << 20  # of a ``Pong``


class Run(Struct, tag=1, array_like=True, gc=False, frozen=True):
    job: int
    order: bytes  # the ``Dispatch``, as it came off the log
    version: int  # that the engine serves; -1: none
    traceparent: str | None
    turns: list[bytes] = []  # what earlier attempts at these runs have completed, as it came off the log


class CancelRun(Struct, tag=2, array_like=True, gc=False, frozen=True):
    """Cancel it. The answer to its ``Run`` still comes."""

    job: int


class RequestAnswered(Struct, tag=3, array_like=True, gc=False, frozen=True):
    job: int
    number: int
    frames: list[DrawnFrame | SaidFrame | ScoredFrame | FailedFrame]


class Ping(Struct, tag=5, array_like=True, gc=False, frozen=True):
    """Are you there?"""


class KeepTurn(Struct, tag="keep", array_like=True, gc=False, frozen=True):
    turn: bytes  # a ``Turn``, encoded


class EngineRequest(Struct, tag=6, array_like=True, gc=False, frozen=True):
    job: int
    number: int
    ask: Ask | ChatAsk | ScoreAsk | KeepTurn
    pool: str | None = None  # whose explorers are asked; None: this one
    traceparent: str | None = None


class AbandonRequest(Struct, tag=7, array_like=True, gc=False, frozen=True):
    job: int
    number: int


class RunDone(Struct, tag=8, array_like=True, gc=False, frozen=True):
    job: int
    group: bytes  # an ``ExperienceGroup``, encoded: nobody has looked at it yet
    error: str | None = None  # the first one, where some runs broke off


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


_PONG = b"\x0b"  # its tag, as it is on the wire

type RunEnded = RunDone | RunFailed | RunCancelled
type ToRunner = Run | CancelRun | Ping | RequestAnswered
type ToExplorer = EngineRequest | AbandonRequest | RunDone | RunFailed | RunCancelled | Pong

TO_RUNNER: Dialect[ToRunner] = Dialect(Run | CancelRun | Ping | RequestAnswered, limit=MAX_FRAME_BYTES)
TO_EXPLORER: Dialect[ToExplorer] = Dialect(
    EngineRequest | AbandonRequest | RunDone | RunFailed | RunCancelled | Pong, limit=MAX_FRAME_BYTES
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
