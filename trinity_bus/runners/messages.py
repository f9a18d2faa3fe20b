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

``RequestRules`` are those of talking with one runner, seen from the explorer. Of each job that it was given::

    OPEN --RunDone, RunFailed, RunCancelled--> (forgotten)
      '--CancelRun--> CANCELLED --RunDone, RunFailed, RunCancelled--> (forgotten)

and each request of an OPEN job, to an engine or to keep a turn::

    (unheard of) --EngineRequest--> SERVED --answered--> (forgotten)
                                |--AbandonRequest--> (forgotten; the engine drops it)
                                '--its job ends or is cancelled--> (forgotten; the engine drops it)

============================================  ======================================================================
what the runner says                          what happens
============================================  ======================================================================
what it asks for, of an OPEN job              it is served; refused where the job has ``MAX_REQUESTS`` of them
the same of a CANCELLED job                   nothing: it crossed the cancellation
``AbandonRequest`` of what is not served      nothing: it crossed the answer
an end of a job that it was not given         ``ProtocolError``
``RunCancelled`` of an OPEN job               ``ProtocolError``
the same of a job that it was not given       ``ProtocolError``
the same request number twice at once         ``ProtocolError``
============================================  ======================================================================
"""

from dataclasses import dataclass, field
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


# Engine requests of one job at once: what a workflow gone wild can make the explorer hold.
MAX_REQUESTS = 4096

type RequestKey = tuple[int, int]  # job and number of the request


class Dropped(Struct, frozen=True):
    requests: tuple[RequestKey, ...]  # that nobody waits for any more
    ended: RunEnded | None = None  # how the job has ended that they were of


# A request is to be served, and an answer, which refuses one, to be sent.
type Reaction = EngineRequest | RequestAnswered | Dropped | Pong


@dataclass(slots=True)
class _Job:
    cancelled: bool = False
    requests: dict[int, None] = field(default_factory=dict)


class RequestRules:
    def __init__(self) -> None:
        self._jobs: dict[int, _Job] = {}

    @property
    def jobs(self) -> tuple[int, ...]:
        return tuple(self._jobs)

    def run(self, job: int) -> None:
        """Note that a job is given to the runner; it was given to nobody in this conversation before."""
        self._jobs[job] = _Job()

    def cancel(self, job: int) -> tuple[RequestKey, ...]:
        """Note that a job is cancelled, unless it has ended; return the requests to drop."""
        known = self._jobs.get(job)
        if known is None:
            return ()
        known.cancelled = True
        return self._forget_requests(job, known)

    def answer(self, request: RequestKey) -> bool:
        """Note that the engine is done with a request; return whether the runner is to be told."""
        job, number = request
        known = self._jobs.get(job)
        if known is None or number not in known.requests:
            return False
        del known.requests[number]
        return True

    def close(self) -> tuple[RequestKey, ...]:
        """Note that the runner is gone; return the requests to drop."""
        dropped = tuple(request for job, known in self._jobs.items() for request in self._forget_requests(job, known))
        self._jobs.clear()
        return dropped

    def receive(self, message: ToExplorer) -> Reaction | None:
        """Return what a message means, None if nothing any more; raises ProtocolError where it must not be said."""
        match message:
            case EngineRequest():
                return self._asked(message)
            case AbandonRequest(job, number):
                return Dropped(((job, number),)) if self.answer((job, number)) else None
            case Pong():
                return message
        known = self._known(message.job)
        if isinstance(message, RunCancelled) and not known.cancelled:
            raise ProtocolError(f"it cancelled job {message.job}, which it was not told to")
        del self._jobs[message.job]
        return Dropped(self._forget_requests(message.job, known), message)

    def _asked(self, asked: EngineRequest) -> Reaction | None:
        known = self._known(asked.job)
        if known.cancelled:
            return None
        if asked.number in known.requests:
            raise ProtocolError(f"request {asked.number} of job {asked.job} came twice")
        if len(known.requests) >= MAX_REQUESTS:
            why = f"a workflow has {MAX_REQUESTS} requests at once; wait for some before asking more"
            return RequestAnswered(asked.job, asked.number, [FailedFrame(why, "RequestRefusedError")])
        known.requests[asked.number] = None
        return asked

    def _known(self, job: int) -> _Job:
        known = self._jobs.get(job)
        if known is None:
            raise ProtocolError(f"it spoke of job {job}, which it does not have")
        return known

    def _forget_requests(self, job: int, known: _Job) -> tuple[RequestKey, ...]:
        dropped = tuple((job, number) for number in known.requests)
        known.requests.clear()
        return dropped
