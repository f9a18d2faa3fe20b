"""A runner: one event loop that runs workflows, several at once, in a process of its own.

::

    SERVING --the explorer closes the socket, or dies--> workflows cancelled, spans written, ended

    a job:  Run --> its workflow --returned--> Done, with the experiences, encoded once and for all
                       |-- asks the engine: Generate --> waits --> Completions, or an error of the engine's
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
from typing import Any, cast

from opentelemetry.context import attach

from schemas import Dispatch, Sampling
from schemas.codec import decode, encode
from schemas.groups.vectors import FLOAT32, INT32
from schemas.turn import Turn
from trinity_bus import awake
from trinity_bus.chat.messages import Completion
from trinity_bus.config import TelemetrySettings
from trinity_bus.errors import TrinityError
from trinity_bus.inference.errors import EngineError
from trinity_bus.rollout import PartialRunsError, RolloutContext, RunState, Tokenizer, get_workflow
from trinity_bus.rollout.answer import encode_answer
from trinity_bus.rollout.threads import given_up
from trinity_bus.rollout.turns import RunTurns, Write
from trinity_bus.runners import messages
from trinity_bus.runners.control import LoadWorkflows
from trinity_bus.runners.frame_writer import FrameWriter
from trinity_bus.runtime.frames import FrameReader, ProtocolError
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
    await asyncio.get_running_loop().create_unix_connection(lambda: runner, sock=link)
    try:
        await runner.over
    finally:
        await runner.end()


class RemoteEngine:
    """The engine, and those of other pools, for one job: every request goes to the explorer."""

    def __init__(self, job: int, send: Callable[[messages.ToExplorer], None]) -> None:
        self._job = job
        self._send = send
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling: Sampling, n: int = 1, traceparent: str | None = None
    ) -> list[Completion]:
        # The engine's span is a child of the current one, where a workflow has started one.
        return await self._draw(prompt_token_ids, sampling, n, current_traceparent() or traceparent, None)

    async def generate_in(
        self, pool: str, prompt_token_ids: Sequence[int], sampling: Sampling, n: int
    ) -> list[Completion]:
        return await self._draw(prompt_token_ids, sampling, n, current_traceparent(), pool)

    async def chat(self, pool: str, conversation: bytes, sampling: Sampling) -> str:
        how = _how(sampling)
        text: str = await self._ask(lambda number: messages.Chat(self._job, number, pool, conversation, how))
        return text

    async def score(self, pool: str, token_ids: Sequence[int], start: int) -> list[float]:
        tokens = messages.pack_vector(token_ids, INT32)
        logprobs: list[float] = await self._ask(lambda number: messages.Score(self._job, number, pool, tokens, start))
        return logprobs

    async def _draw(
        self, prompt_token_ids: Sequence[int], sampling: Sampling, n: int, parent: str | None, pool: str | None
    ) -> list[Completion]:
        prompt, how = messages.pack_vector(prompt_token_ids, INT32), _how(sampling)
        drawn: list[Completion] = await self._ask(
            lambda number: messages.Generate(self._job, number, prompt, how, n, parent, pool)
        )
        return drawn

    async def keep(self, turn: Turn) -> None:
        """Return when a turn is durable; SchemaError where it is too large, EngineError where it is not kept."""
        packed = encode(turn)
        await self._ask(lambda number: messages.KeepTurn(self._job, number, packed))

    async def _ask(self, request: Callable[[int], messages.Asked]) -> Any:
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._send(request(number))
            return await answer
        except asyncio.CancelledError:
            self._send(messages.AbandonRequest(self._job, number))
            raise
        finally:
            del self._waiting[number]

    def close(self) -> None:
        for answer in self._waiting.values():
            answer.cancel()

    def answered(self, message: messages.Answered) -> None:
        answer = self._waiting.get(message.request)
        if answer is None or answer.done():
            return
        match message:
            case messages.Completions():
                answer.set_result(messages.unpack_completions(message))
            case messages.Chatted():
                answer.set_result(message.text)
            case messages.Scored():
                answer.set_result(messages.unpack_vector(message.logprobs, FLOAT32).tolist())
            case messages.TurnKept():
                answer.set_result(None)
            case messages.EngineFailed():
                answer.set_exception(_engine_error(message))


@dataclass(slots=True)
class _Job:
    engine: RemoteEngine
    state: RunState
    cancelled: bool = False
    task: asyncio.Task[None] | None = None


class Runner(asyncio.Protocol):
    def __init__(self, tokenizer: Tokenizer, common: LoadWorkflows) -> None:
        self._tokenizer = tokenizer
        self._model = common.model
        self._namespace = common.namespace
        self._sampling = Sampling.model_validate_json(common.sampling)
        self._frames = FrameReader(messages.TO_RUNNER.limit)
        self._jobs: dict[int, _Job] = {}
        self._writer = FrameWriter(messages.TO_EXPLORER)
        # done when the explorer has closed its end
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # That of uvloop is not derived from it.
        self._writer.connected(cast("asyncio.WriteTransport", transport))
        self._writer.send(messages.Pong({}))

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._handle(messages.TO_RUNNER.decode(body))
        except ProtocolError as error:
            self._finish(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._writer.close()
        self._finish(None)

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

    def _finish(self, error: Exception | None) -> None:
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)

    def _handle(self, message: messages.ToRunner) -> None:
        match message:
            case messages.Run(job):
                known = _Job(RemoteEngine(job, self._writer.send), RunState(lambda: self._tell_soon(job)))
                self._jobs[job] = known
                known.task = asyncio.create_task(self._work(message, known), name=f"job {job}")
            case messages.CancelRun(job):
                if (running := self._jobs.get(job)) is not None and running.task is not None:
                    running.cancelled = True
                    running.task.cancel()
            case messages.Ping():
                news = {job: known.state.take() for job, known in self._jobs.items() if known.state.changed}
                self._writer.send(messages.Pong(news, given_up() > 0))
            case answer:
                if (asking := self._jobs.get(answer.job)) is not None:
                    asking.engine.answered(answer)

    def _tell_soon(self, job: int) -> None:
        # After this step of the workflow: what it says together is told together.
        asyncio.get_running_loop().call_soon(self._tell, job)

    def _tell(self, job: int) -> None:
        known = self._jobs.get(job)
        if known is not None and known.state.changed:
            self._writer.send(messages.Pong({job: known.state.take()}))

    async def _work(self, job: messages.Run, known: _Job) -> None:
        answer: messages.RunDone | messages.RunFailed | messages.RunCancelled
        try:
            answer = await self._run(job, known)
        # A workflow may raise anything, and may ask to exit: it is this attempt's failure, and nobody else's.
        except BaseException as error:  # noqa: BLE001
            answer = messages.RunFailed(job.job, type(error).__name__[:MAX_ERROR_CHARS], _message(error))
            if not (known.cancelled or self.over.done() or isinstance(error, TrinityError)):
                _log.warning("a workflow failed", exc_info=error)
        self._tell(job.job)
        known.engine.close()
        del self._jobs[job.job]
        if known.cancelled:
            answer = messages.RunCancelled(job.job)
        self._writer.send(answer)

    async def _run(self, job: messages.Run, known: _Job) -> messages.RunDone:
        order = decode(job.order, Dispatch)
        with KeptPlaces(self._namespace, order.task.task_id) as places:
            return await self._run_in(places, order, job, known)

    async def _run_in(self, places: KeptPlaces, order: Dispatch, job: messages.Run, known: _Job) -> messages.RunDone:
        turns = _TurnsOf(order, [decode(turn, Turn) for turn in job.turns], known.engine.keep)
        # This task's own context: there is nothing to detach.
        attach(parent_context(job.traceparent))
        context = RolloutContext(
            engine=known.engine,
            tokenizer=self._tokenizer,
            model=self._model,
            task_id=order.task.task_id,
            repeat_times=order.repeat_times,
            run_id_base=order.run_id_base,
            sampling=self._sampling,
            batch_type=order.batch_type,
            traceparent=job.traceparent,
            state=known.state,
            pools=known.engine,
            turns_of=turns,
            places=places,
        )
        try:
            rollouts, error = await get_workflow(order.task.workflow).run(order.task, context), None
        except PartialRunsError as partial:
            rollouts, error = partial.rollouts, _message(partial)
            await turns.settle()
        except Exception:
            await turns.settle()
            raise
        done = messages.RunDone(job.job, encode_answer(order, rollouts, self._model, job.version, context.asked), error)
        if error is None:
            # Else another attempt goes on with them.
            await asyncio.to_thread(places.remove)
        return done


class _TurnsOf:
    """The turns of each run of an attempt; ``done`` by earlier attempts, in order."""

    def __init__(self, order: Dispatch, done: Sequence[Turn], write: Write) -> None:
        self._order = order
        self._done = done
        self._write = write
        self._given: list[RunTurns] = []

    def __call__(self, run_id: int) -> RunTurns:
        order = self._order
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
        turns = RunTurns([turn for turn in self._done if turn.run_id == run_id], like, self._write)
        self._given.append(turns)
        return turns

    async def settle(self) -> None:
        """Wait until what runs that have failed have completed is durable: the explorer drops what it keeps with them.

        The next attempt at them goes on from it. What cannot be written is asked again then, and so is what takes
        longer than ``_SETTLE_S``: the failure is to be told.
        """
        with contextlib.suppress(TimeoutError):
            async with awake.timeout(_SETTLE_S):
                ended = await asyncio.gather(*(one.durable() for one in self._given), return_exceptions=True)
                for error in filter(None, ended):
                    _log.warning("a turn of a run that failed is not kept: %s", error)


def _how(sampling: Sampling) -> bytes:
    return sampling.model_dump_json(exclude_none=True).encode()


def _message(error: BaseException) -> str:
    try:
        # What is only half a character cannot be sent, and is escaped.
        return str(error)[:MAX_ERROR_CHARS].encode("utf-8", "backslashreplace").decode()
    except Exception:  # noqa: BLE001 (an error of the user's that cannot even be shown)
        return "its message cannot be shown"


_ENGINE_ERRORS: dict[str, type[EngineError]] = {
    "EngineError": EngineError,
    **{kind.__name__: kind for kind in EngineError.__subclasses__()},
}


def _engine_error(message: messages.EngineFailed) -> Exception:
    kind = _ENGINE_ERRORS.get(message.kind)
    return EngineError(f"{message.kind}: {message.message}") if kind is None else kind(message.message)
