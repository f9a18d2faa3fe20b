"""A runner: one event loop that runs workflows, several at once, in a process of its own.

::

    SERVING --the explorer closes the socket, or dies--> workflows cancelled, spans written, ended

    a job:  Run --> its workflow --returned--> Done, with the experiences, encoded once and for all
                       |-- asks the engine: EngineRequest --> waits --> RequestAnswered, perhaps with the engine's error
                       |--raised-------------> its last turns durable --> Failed, with the error's type and message
                       '--CancelRun: cancelled, and whatever it does then: Cancelled

What a workflow says of itself first, and last, is told at once, the rest when the explorer asks.

A workflow that blocks the loop blocks all jobs here, and the answers to pings: then the explorer stops this process.
Spans that a workflow starts are children of the rollout's span, and parents of the engine's.
"""

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opentelemetry.context import attach

from schemas import Dispatch, Sampling
from schemas.codec import decode, encode
from schemas.errors import encodable
from schemas.turn import Turn
from trinity_bus import awake
from trinity_bus.chat import Tokenizer, wire
from trinity_bus.chat.messages import Completion
from trinity_bus.config import TelemetrySettings
from trinity_bus.errors import TrinityError
from trinity_bus.inference.errors import EngineError
from trinity_bus.rollout.answer import encode_answer
from trinity_bus.rollout.registry import get_workflow
from trinity_bus.rollout.threads import given_up
from trinity_bus.rollout.turns import RunTurns
from trinity_bus.rollout.workflow import PartialRunsError, RolloutContext, RunState
from trinity_bus.runners import messages
from trinity_bus.runners.control import LoadWorkflows
from trinity_bus.runners.link import FrameConnection
from trinity_bus.runtime.frames import ProtocolError
from trinity_bus.sandbox import KeptPlaces
from trinity_bus.telemetry import parent_context, setup_telemetry
from trinity_bus.telemetry import traceparent as current_traceparent
from trinity_bus.telemetry.setup import destination_configured

_log = logging.getLogger(__name__)

MAX_ERROR_CHARS = 4000  # of an error's message; the result keeps less
_SETTLE_S = 5.0  # how long the last turns of runs that have failed may take to be written


def run_runner(link: socket.socket, serial: int, tokenizer: Tokenizer, order: LoadWorkflows) -> None:
    """Serve until the explorer closes its end. Called in a freshly forked process."""
    import uvloop

    settings = TelemetrySettings.model_validate_json(order.telemetry)
    telemetry = None
    if destination_configured(settings):
        instance = f"{order.explorer}/runner-{serial}"
        telemetry = setup_telemetry("explorer", settings, namespace=order.namespace, instance=instance, discreet=True)
    try:
        uvloop.run(_serve(link, tokenizer, order))
    finally:
        if telemetry is not None:
            telemetry.shutdown()


async def _serve(link: socket.socket, tokenizer: Tokenizer, common: LoadWorkflows) -> None:
    runner = Runner(tokenizer, common)
    link.setblocking(False)
    await runner.connection.open(link)
    try:
        await runner.over
    finally:
        await runner.end()


class Requests:
    """What one job asks of the explorer."""

    def __init__(self, job: int, send: Callable[[messages.ToExplorer], None]) -> None:
        self._job = job
        self._send = send
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[list[wire.Frame]]] = {}

    async def ask(
        self, ask: wire.AnyAsk | messages.KeepTurn, pool: str | None = None, parent: str | None = None
    ) -> list[wire.Frame]:
        number = next(self._numbers)
        answer: asyncio.Future[list[wire.Frame]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._send(messages.EngineRequest(self._job, number, ask, pool, parent))
            return await answer
        except asyncio.CancelledError:
            self._send(messages.AbandonRequest(self._job, number))
            raise
        finally:
            del self._waiting[number]

    async def keep(self, turn: Turn) -> None:
        """Return when a turn is durable; SchemaError where it is too large, EngineError where it is not kept."""
        await self.ask(messages.KeepTurn(encode(turn)))

    def close(self) -> None:
        for answer in self._waiting.values():
            answer.cancel()

    def answered(self, message: messages.RequestAnswered) -> None:
        answer = self._waiting.get(message.number)
        if answer is None or answer.done():
            return
        match message.frames:
            case [wire.FailedFrame(reason, kind)]:
                answer.set_exception(_engine_error(kind, reason))
            case frames:
                answer.set_result(frames)


class RemoteEngine:
    """The engine, or that of another pool: every request goes to the explorer."""

    def __init__(self, requests: Requests, pool: str | None = None) -> None:
        self._ask = requests.ask
        self._pool = pool

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling: Sampling, n: int = 1, traceparent: str | None = None
    ) -> list[Completion]:
        ask = wire.Ask(wire.token_bytes(prompt_token_ids), wire.sampling_bytes(sampling), n)
        # The engine's span is a child of the current one, where a workflow has started one.
        frames = await self._ask(ask, self._pool, current_traceparent() or traceparent)
        return [wire.completion_of(one) for one in frames if isinstance(one, wire.DrawnFrame)]

    async def chat(self, conversation: bytes, sampling: Sampling) -> str:
        said = await self._ask(wire.ChatAsk(conversation, wire.sampling_bytes(sampling)), self._pool)
        return "".join(one.text for one in said if isinstance(one, wire.SaidFrame))

    async def score(self, token_ids: Sequence[int], start: int) -> list[float]:
        scored = await self._ask(wire.ScoreAsk(wire.token_bytes(token_ids), start), self._pool)
        return [p for one in scored if isinstance(one, wire.ScoredFrame) for p in wire.logprobs_of(one.logprobs)]


@dataclass(slots=True)
class _Job:
    requests: Requests
    state: RunState
    cancelled: bool = False
    task: asyncio.Task[None] | None = None


class Runner:
    def __init__(self, tokenizer: Tokenizer, common: LoadWorkflows) -> None:
        self._tokenizer = tokenizer
        self._model = common.model
        self._namespace = common.namespace
        self._sampling = Sampling.model_validate_json(common.sampling)
        self._jobs: dict[int, _Job] = {}
        self.connection = FrameConnection(messages.TO_EXPLORER, messages.TO_RUNNER.limit, self._hear, self._finish)
        self._send = self.connection.send
        self._send(messages.Pong({}))
        # done when the explorer has closed its end
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def end(self) -> None:
        # What runs is not waited for longer than the explorer has patience.
        tasks = []
        for job in self._jobs.values():
            # Otherwise it would look like a workflow that has failed.
            job.cancelled = True
            if job.task is not None:
                job.task.cancel()
                tasks.append(job.task)
        if tasks:
            await asyncio.wait(tasks)

    def _finish(self, error: ProtocolError | None) -> None:
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)

    def _hear(self, body: bytes) -> None:
        match messages.TO_RUNNER.decode(body):
            case messages.Run(job) as message:
                known = _Job(Requests(job, self._send), RunState(lambda: self._tell_soon(job)))
                self._jobs[job] = known
                known.task = asyncio.create_task(self._work(message, known), name=f"job {job}")
            case messages.CancelRun(job):
                if (running := self._jobs.get(job)) is not None and running.task is not None:
                    running.cancelled = True
                    running.task.cancel()
            case messages.Ping():
                news = {job: known.state.take() for job, known in self._jobs.items() if known.state.changed}
                self._send(messages.Pong(news, given_up() > 0))
            case answer:
                if (asking := self._jobs.get(answer.job)) is not None:
                    asking.requests.answered(answer)

    def _tell_soon(self, job: int) -> None:
        # After this step of the workflow: what it says together is told together.
        asyncio.get_running_loop().call_soon(self._tell, job)

    def _tell(self, job: int) -> None:
        known = self._jobs.get(job)
        if known is not None and known.state.changed:
            self._send(messages.Pong({job: known.state.take()}))

    async def _work(self, job: messages.Run, known: _Job) -> None:
        answer: messages.RunEnded
        try:
            answer = await self._run(job, known)
        # A workflow may raise anything, and may ask to exit: it is this attempt's failure, and nobody else's.
        except BaseException as error:  # noqa: BLE001
            answer = messages.RunFailed(job.job, type(error).__name__[:MAX_ERROR_CHARS], _message(error))
            if not (known.cancelled or self.over.done() or isinstance(error, TrinityError)):
                _log.warning("a workflow failed", exc_info=error)
        self._tell(job.job)
        known.requests.close()
        del self._jobs[job.job]
        if known.cancelled:
            answer = messages.RunCancelled(job.job)
        self._send(answer)

    async def _run(self, job: messages.Run, known: _Job) -> messages.RunDone:
        order = decode(job.order, Dispatch)
        with KeptPlaces(self._namespace, order.task.task_id) as places:
            return await self._run_in(places, order, job, known)

    async def _run_in(self, places: KeptPlaces, order: Dispatch, job: messages.Run, known: _Job) -> messages.RunDone:
        done = [decode(turn, Turn) for turn in job.turns]
        given: list[RunTurns] = []

        def turns_of(run_id: int) -> RunTurns:
            like = Turn(
                task_id=order.task.task_id,
                attempt=order.attempt,
                run_id=run_id,
                number=0,
                workflow=order.task.workflow,
                explorer=order.explorer,
                incarnation=order.incarnation,
                answers=[],
            )
            given.append(RunTurns([turn for turn in done if turn.run_id == run_id], like, known.requests.keep))
            return given[-1]

        # This task's own context: there is nothing to detach.
        attach(parent_context(job.traceparent))
        context = RolloutContext(
            engine=RemoteEngine(known.requests),
            tokenizer=self._tokenizer,
            model=self._model,
            task_id=order.task.task_id,
            repeat_times=order.repeat_times,
            run_id_base=order.run_id_base,
            sampling=self._sampling,
            batch_type=order.batch_type,
            traceparent=job.traceparent,
            state=known.state,
            pools=lambda pool: RemoteEngine(known.requests, pool),
            turns_of=turns_of,
            places=places,
        )
        try:
            rollouts, error = await get_workflow(order.task.workflow).run(order.task, context), None
        except PartialRunsError as partial:
            rollouts, error = partial.rollouts, _message(partial)
            await _settle(given)
        except Exception:
            await _settle(given)
            raise
        group = encode_answer(order, rollouts, self._model, job.version, context.asked)
        if error is None and places.claimed:
            # Else another attempt goes on with them.
            await asyncio.to_thread(places.remove)
        return messages.RunDone(job.job, group, error)


async def _settle(turns: Sequence[RunTurns]) -> None:
    """Wait until what runs that have failed have completed is durable: the explorer drops what it keeps with them.

    The next attempt at them goes on from it. What cannot be written is asked again then, and so is what takes longer
    than ``_SETTLE_S``: the failure is to be told.
    """
    with contextlib.suppress(TimeoutError):
        async with awake.timeout(_SETTLE_S):
            ended = await asyncio.gather(*(one.durable() for one in turns), return_exceptions=True)
            for error in filter(None, ended):
                _log.warning("a turn of a run that failed is not kept: %s", error)


def _message(error: BaseException) -> str:
    try:
        # What is only half a character cannot be sent, and is escaped.
        return encodable(str(error)[:MAX_ERROR_CHARS])
    except Exception:  # noqa: BLE001 (an error of the user's that cannot even be shown)
        return "its message cannot be shown"


_ENGINE_ERRORS: dict[str, type[EngineError]] = {
    "EngineError": EngineError,
    **{kind.__name__: kind for kind in EngineError.__subclasses__()},
}


def _engine_error(kind: str, message: str) -> EngineError:
    known = _ENGINE_ERRORS.get(kind)
    return EngineError(f"{kind}: {message}") if known is None else known(message)
