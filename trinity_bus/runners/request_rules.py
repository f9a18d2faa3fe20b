"""The rules of talking with one runner, seen from the explorer. Pure: no socket, no clock, no task.

Of each job that the runner was given::

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

from msgspec import Struct

from trinity_bus.chat.wire import FailedFrame
from trinity_bus.runners import messages
from trinity_bus.runtime.frames import ProtocolError

# Engine requests of one job at once: what a workflow gone wild can make the explorer hold.
MAX_REQUESTS = 4096

type RequestKey = tuple[int, int]  # job and number of the request


class Dropped(Struct, frozen=True):
    requests: tuple[RequestKey, ...]  # that nobody waits for any more
    ended: messages.RunEnded | None = None  # how the job has ended that they were of


# A request is to be served, and an answer, which refuses one, to be sent.
type Reaction = messages.EngineRequest | messages.RequestAnswered | Dropped | messages.Pong


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

    def receive(self, message: messages.ToExplorer) -> Reaction | None:
        """Return what a message means, None if nothing any more; raises ProtocolError where it must not be said."""
        match message:
            case messages.EngineRequest():
                return self._asked(message)
            case messages.AbandonRequest(job, number):
                return Dropped(((job, number),)) if self.answer((job, number)) else None
            case messages.Pong():
                return message
        known = self._known(message.job)
        if isinstance(message, messages.RunCancelled) and not known.cancelled:
            raise ProtocolError(f"it cancelled job {message.job}, which it was not told to")
        del self._jobs[message.job]
        return Dropped(self._forget_requests(message.job, known), message)

    def _asked(self, asked: messages.EngineRequest) -> Reaction | None:
        known = self._known(asked.job)
        if known.cancelled:
            return None
        if asked.number in known.requests:
            raise ProtocolError(f"request {asked.number} of job {asked.job} came twice")
        if len(known.requests) >= MAX_REQUESTS:
            why = f"a workflow has {MAX_REQUESTS} requests at once; wait for some before asking more"
            return messages.RequestAnswered(asked.job, asked.number, [FailedFrame(why, "RequestRefusedError")])
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
