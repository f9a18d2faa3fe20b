"""Runners at work: sockets, engine requests and the fork server around the pure parts.

::

    RolloutExecutor --roll_out(order)--> Pool --StartJob--> a runner --EngineRequest--> engine --RequestAnswered-->
        the runner --RunDone--> the bytes of its answer, to RolloutExecutor

============================  ========================================================================================
what fails                    what happens
============================  ========================================================================================
a workflow                    ``WorkflowRaisedError``, with the type and message of what it raised
a runner                      see :mod:`trinity_bus.runners.pool`; at worst ``RunnerDiedError``
what a runner says            it is killed, and its attempts are treated as if it had died
a request to an engine        the workflow gets the engine's error, and may catch it
the engine                    ``fatal``: the explorer ends
fork server, or every start   ``fatal``: the explorer ends
the caller is cancelled       it is told so at once; the workflow has ``cancel_grace_s`` to let go of its runner
============================  ========================================================================================
"""

import asyncio
import itertools
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from schemas import Cancel, Dispatch, Sampling
from schemas.event import RunnerState
from schemas.groups.kept import small_enough
from trinity_bus import awake
from trinity_bus.chat import Completion, wire
from trinity_bus.config import ExplorerSettings
from trinity_bus.errors import TrinityError
from trinity_bus.inference.errors import EngineDeadError, GenerationError
from trinity_bus.inference.sampling import check_count
from trinity_bus.rollout.workflow import Pools
from trinity_bus.runners import messages
from trinity_bus.runners import pool as do
from trinity_bus.runners.engine import ExplorerEngine
from trinity_bus.runners.fork_server import ForkServer, RunnersError
from trinity_bus.runners.link import RunnerLink
from trinity_bus.runners.pool import Pool
from trinity_bus.runners.report import JobStatus, accept_state, runner_states
from trinity_bus.runtime.forking import ChildExited, ChildForked
from trinity_bus.runtime.frames import ProtocolError
from trinity_bus.runtime.process import how_ended
from trinity_bus.telemetry.metrics import RUNNER_DEATHS

_log = logging.getLogger(__name__)

# After so long, a runner that has closed its socket and is not dead is killed.
_HUNG_UP_S = 1.0
# How long runners may take to end by themselves at the end.
_POLITE_S = 1.0
# How long killed runners may take to be collected at the end.
_CLOSE_S = 10.0
_PAGE = os.sysconf("SC_PAGE_SIZE")

type AttemptKey = tuple[str, int]  # task id and attempt


class RunnerDiedError(TrinityError):
    """An attempt was alone in a runner when that died or had to be stopped; the message says how."""


class WorkflowRaisedError(TrinityError):
    """A workflow raised an error in its runner: ``kind`` is the name of its type."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


def key_of(order: Dispatch | Cancel) -> AttemptKey:
    return (order.task.task_id if isinstance(order, Dispatch) else order.task_id, order.attempt)


type Keep = Callable[[bytes], Awaitable[None]]  # makes a turn durable, which a runner says is over
# draws responses of this engine, as its ``generate`` does
type Draw = Callable[[ExplorerEngine, Sequence[int], Sampling, int, str | None], Awaitable[Sequence[Completion]]]


@dataclass(slots=True)
class _Pending:
    order: Dispatch
    run: messages.Run
    answer: asyncio.Future[messages.RunDone]
    keep: Keep
    draw: Draw | None
    at_once: bool = False


class Runners:
    """Runs attempts in processes of their own. Nobody else listens to its fork server, which is ready."""

    def __init__(
        self, fork_server: ForkServer, engine: ExplorerEngine, settings: ExplorerSettings, pools: Pools
    ) -> None:
        self._fork_server = fork_server
        self._engine = engine
        self._pools = pools
        self._name = settings.name
        self._pool = Pool(settings)
        self._links: dict[int, RunnerLink] = {}
        self._pids: dict[int, int] = {}
        self._numbers = itertools.count()
        self._pending: dict[int, _Pending] = {}
        self._job_of: dict[AttemptKey, int] = {}
        self._statuses: dict[int, JobStatus] = {}
        self._last: dict[int, JobStatus] = {}
        self._requests: dict[tuple[int, int, int], asyncio.Task[None]] = {}
        self._dying: set[int] = set()
        # Whether the fork server is gone, and with it whoever tells of deaths.
        self._orphaned = False
        self._closed = False
        self._changed = asyncio.Event()
        self.fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # raises what ends the explorer

    def start(self) -> None:
        """Start the runners; attempts may be given to them at once."""
        self._fork_server.listen(self._on_fork_server)
        self._do(self._pool.begin())

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._pool.tick_s)
            self._do(self._pool.tick(awake.now(), {serial: _rss_mib(pid) for serial, pid in self._pids.items()}))

    async def roll_out(
        self,
        order: Dispatch,
        raw: bytes,
        traceparent: str | None,
        *,
        keep: Keep,
        turns: Sequence[bytes] = (),
        draw: Draw | None = None,
    ) -> messages.RunDone:
        """Run an attempt's workflow in a runner. Cancelled, it returns at once and the workflow is stopped.

        ``raw`` is the order as it came off the log, which the runner gets; ``keep`` is called with each turn that it
        completes, and raises what its workflow is told, as does ``draw``; ``turns`` are what earlier attempts have
        completed. WorkflowRaisedError: the workflow did. RunnerDiedError: it took its runner with it.
        """
        job = next(self._numbers)
        attempt = key_of(order)
        run = messages.Run(job, raw, self._engine.model_version, traceparent, list(turns))
        pending = _Pending(order, run, asyncio.get_running_loop().create_future(), keep, draw)
        self._pending[job] = pending
        self._job_of[attempt] = job
        self._do(self._pool.submit(job))
        try:
            return await pending.answer
        except asyncio.CancelledError:
            self._do(self._pool.cancel(job, awake.now(), at_once=pending.at_once))
            raise
        finally:
            del self._pending[job]
            del self._job_of[attempt]

    def stop_at_once(self, attempt: AttemptKey) -> None:
        """When this attempt is cancelled, its runner is not to be given any time to let go of it."""
        job = self._job_of.get(attempt)
        if job is not None:
            self._pending[job].at_once = True

    def states(self) -> list[RunnerState]:
        return runner_states(
            self._name, self._pool.runners, pids=self._pids, running=self._statuses, last=self._last, now=time.time()
        )

    async def close(self) -> None:
        self._closed = True
        links, self._links = self._links, {}
        self._dying = set(links)
        for link in links.values():
            link.dismiss()
        requests = list(self._requests.values())
        for request in requests:
            request.cancel()
        if requests:
            await asyncio.wait(requests)
        if not await self._all_dead(_POLITE_S):
            for serial in self._dying:
                self._fork_server.signal(serial, signal.SIGKILL)
            if not await self._all_dead(_CLOSE_S):
                # They end with the fork server.
                _log.warning("runners are not known to be dead after %g s: %s", _CLOSE_S, sorted(self._dying))
        self._fork_server.unlisten()

    async def _all_dead(self, limit_s: float) -> bool:
        try:
            async with awake.timeout(limit_s):
                while self._dying and not self._orphaned:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    # Effects of the pool.

    def _do(self, effects: Iterable[do.PoolEffect]) -> None:
        # What is decided after the end concerns runners that are gone.
        for effect in () if self._closed else effects:
            match effect:
                case do.StartRunner(serial):
                    self._links[serial] = RunnerLink(serial, self._fork_server.fork(serial), self._hear, self._lose)
                case do.StartJob(serial, job):
                    self._begin(serial, job)
                case do.CancelJob(serial, job):
                    link = self._links[serial]
                    self._drop(serial, link.requests.cancel(job))
                    link.send(messages.CancelRun(job))
                case do.PingRunner(serial):
                    self._links[serial].send(messages.Ping())
                case do.CloseRunner(serial):
                    self._links[serial].dismiss()
                case do.KillRunner(serial, number, why):
                    _log.warning("runner %s/%d is stopped: %s", self._name, serial, why)
                    self._fork_server.signal(serial, number)
                case do.FailJob(job, how):
                    self._answer(job, RunnerDiedError(f"its runner {how}"))
                case do.GiveUp(why):
                    self._die(RunnersError(why))

    def _begin(self, serial: int, job: int) -> None:
        pending = self._pending[job]
        self._statuses[job] = JobStatus(
            order=pending.order, model_version=self._engine.model_version, begin_time=time.time(), said={}
        )
        link = self._links[serial]
        link.requests.run(job)
        link.send(pending.run)

    def _answer(self, job: int, answer: messages.RunDone | Exception) -> None:
        pending = self._pending.get(job)
        if pending is None or pending.answer.done():
            return
        if isinstance(answer, Exception):
            pending.answer.set_exception(answer)
        else:
            pending.answer.set_result(answer)

    def _die(self, error: Exception) -> None:
        if not self.fatal.done():
            self.fatal.set_exception(error)

    # What the fork server says.

    def _on_fork_server(self, message: ChildForked | ChildExited | RunnersError) -> None:
        match message:
            case ChildForked(serial, pid):
                self._pids[serial] = pid
            case ChildExited(serial, code, error):
                self._pids.pop(serial, None)
                self._last.pop(serial, None)
                link = self._links.pop(serial, None)
                if link is not None:
                    self._on_exit(link, f"could not be started: {error}" if error else how_ended(code))
                self._dying.discard(serial)
                self._changed.set()
            case RunnersError():
                self._orphaned = True
                self._changed.set()
                self._die(message)

    def _on_exit(self, link: RunnerLink, how: str) -> None:
        _log.info("runner %s/%d %s", self._name, link.serial, how)
        if not link.dismissed:
            RUNNER_DEATHS.add(1)
        link.close()
        for job in link.requests.jobs:
            del self._statuses[job]
        self._drop(link.serial, link.requests.close())
        self._do(self._pool.died(link.serial, how))

    # What runners say.

    def _hear(self, link: RunnerLink, body: bytes) -> None:
        self._pool.heard(link.serial)
        match link.requests.receive(messages.to_explorer(body)):
            case messages.EngineRequest() as asked:
                key = (link.serial, asked.job, asked.number)
                self._requests[key] = task = asyncio.create_task(self._serve(link, asked))
                task.add_done_callback(lambda _: self._requests.pop(key, None))
            case messages.RequestAnswered() as refusal:
                link.send(refusal)
            case messages.Dropped(requests, ended):
                self._drop(link.serial, requests)
                if ended is not None:
                    self._job_ended(link.serial, ended)
            case messages.Pong() as answer:
                for job, values in answer.states.items():
                    if job in self._statuses:
                        self._statuses[job].said = accept_state(values)
                if answer.worn:
                    self._do(self._pool.worn(link.serial, awake.now()))

    def _lose(self, link: RunnerLink, error: ProtocolError | None) -> None:
        if error is not None:
            self._break(link, f"it broke the protocol: {error}")
        else:
            # Most likely it is dead, and the fork server is about to say so.
            asyncio.get_running_loop().call_later(_HUNG_UP_S, self._break, link, "it hung up")

    def _break(self, link: RunnerLink, why: str) -> None:
        if self._links.get(link.serial) is link:
            self._do(self._pool.broken(link.serial, why, awake.now()))

    def _job_ended(self, serial: int, how: messages.RunEnded) -> None:
        self._last[serial] = status = self._statuses.pop(how.job)
        status.terminate_time = time.time()
        if isinstance(how, messages.RunDone):
            self._answer(how.job, how)
        elif isinstance(how, messages.RunFailed):
            self._answer(how.job, WorkflowRaisedError(how.kind, how.message))
        self._do(self._pool.ended(how.job, awake.now()))

    async def _serve(self, link: RunnerLink, asked: messages.EngineRequest) -> None:
        try:
            frames = await self._frames(asked)
        except EngineDeadError as error:
            self._die(error)
            return
        except (ProtocolError, ValidationError) as error:
            self._break(link, f"it asked for what cannot be read: {error}")
            return
        # Whatever else an engine raises on a request is the affair of whoever asked.
        except Exception as error:  # noqa: BLE001
            frames = [wire.failed(error)]
        if not link.requests.answer((asked.job, asked.number)):
            return
        try:
            link.send(messages.RequestAnswered(asked.job, asked.number, frames))
        except ProtocolError as error:
            link.send(messages.RequestAnswered(asked.job, asked.number, [wire.failed(GenerationError(str(error)))]))

    async def _frames(self, asked: messages.EngineRequest) -> list[wire.Frame]:
        """Return the answer to a request; ProtocolError, ValidationError, or whatever an engine raises."""
        match asked.ask:
            case messages.KeepTurn(turn):
                # Nobody waits for an attempt that was answered: what it still completes is for nobody.
                if (pending := self._pending.get(asked.job)) is not None:
                    await pending.keep(turn)
                return []
            case wire.ScoreAsk(tokens, start):
                logprobs = await self._pools(asked.pool or "").score(wire.tokens_of(tokens), start)
                return [wire.ScoredFrame(wire.logprob_bytes(logprobs))]
            case wire.ChatAsk(conversation, how):
                sampling = Sampling.model_validate_json(how)
                return [wire.SaidFrame(await self._pools(asked.pool or "").chat(conversation, sampling))]
            case wire.Ask(prompt, how, n):
                check_count(n)
                token_ids, sampling = wire.tokens_of(prompt), Sampling.model_validate_json(how)
                pending = self._pending.get(asked.job)
                if asked.pool is None and pending is not None and pending.draw is not None:
                    drawn = await pending.draw(self._engine, token_ids, sampling, n, asked.traceparent)
                else:
                    engine = self._engine if asked.pool is None else self._pools(asked.pool)
                    drawn = await engine.generate(token_ids, sampling, n, asked.traceparent)
                if not all(one.finish_reason for one in drawn):
                    raise GenerationError("a response has not ended")
                for one, kept in zip(drawn, small_enough(one.kept for one in drawn), strict=True):
                    one.kept = bytearray(kept) if kept else None
                return [wire.frame_of(one, index) for index, one in enumerate(drawn)]

    def _drop(self, serial: int, requests: Iterable[messages.RequestKey]) -> None:
        for job, number in requests:
            task = self._requests.get((serial, job, number))
            if task is not None:
                task.cancel()


def _rss_mib(pid: int) -> float:
    """Return the memory of a process; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE / (1 << 20)
    except OSError:
        return 0.0
