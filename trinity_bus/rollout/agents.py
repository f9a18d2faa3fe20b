"""Agents that someone else wrote, as workflows: functions that speak to a model with a client of OpenAI's, or programs.

::

    run --> Endpoint (a URL and a key of this run) --> the function, or the program, with its own client, loop and tools
                  |                                        |
                  '--> every turn, as it was drawn         '--> its reward, for all samples of the run

A program finds where the model is in its environment (``OPENAI_BASE_URL``, ``OPENAI_API_KEY``), and its task, as JSON,
in standard input. When it is too late, or the attempt is over, it is killed, with all that it has started.

Failures: what the function raises is the failure of its run. So is a program that cannot be started, ends with another
status than 0, or takes too long (``ProgramError``), with the last of what it wrote to standard error. An engine that
fails fails the run, though the function may have passed over it. A function that asks the model nothing gives nothing
to train on, and fails.

The endpoint is OpenAI's chat completions over HTTP, for one run:

::

    agent, with any client --POST /v1/chat/completions--> Endpoint --token ids--> ctx.generate --> the engine
          ^                                                  |
          '---- text, tool calls; in one piece or streamed --'--> Session --> the run's samples

A turn is the model's answer and what the agent does until it asks again: then it is durable (``ctx.end_turn``). Any
other ``model`` than the one that is trained is a pool of ``explorer.auxiliary_pools``, whose answer is no part of any
sample. It listens on loopback, and answers to the run's key alone; a stream is sent when the answer is whole.

Failures: a wrong key is 401; a model that is neither the trained one nor such a pool is 404; a request that cannot be
taken, or that the engine refuses (a prompt that is too long), is 400 and the agent's to handle; an engine that fails is
500, and fails the run, whatever the agent makes of it. A client that goes away takes its request along.
"""

import asyncio
import functools
import inspect
import itertools
import json
import os
import secrets
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Self, cast

from aiohttp import web
from opentelemetry.context import get_current

from schemas.experience import Rollout
from schemas.sampling import Sampling
from schemas.task import Task
from trinity_bus.chat import ChatError, ModelReply, Session, renderer_for
from trinity_bus.chat.openai import (
    ChatRequest,
    ChatShape,
    Choices,
    UnknownModelError,
    error_body,
    model_body,
    models_body,
    read_request,
    token_texts,
)
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.registry import register
from trinity_bus.rollout.single_runs import SingleRunWorkflow
from trinity_bus.rollout.threads import awaited
from trinity_bus.rollout.workflow import RolloutContext, WorkflowError, merge_sampling
from trinity_bus.runtime.execution import STOP_FAMILY, execute, guarded
from trinity_bus.runtime.http import listening, shows_key
from trinity_bus.runtime.ports import LOOPBACK
from trinity_bus.telemetry.generative import note_messages, note_replies, turn_span

MAX_BODY_BYTES: Final = 16 << 20
_CLOSE_S: Final = 0.1  # how long a request may still take when the run is over; 0 would be without end
_REFUSED: Final = "invalid_request_error"
_POLICY: Final = ("", "policy")  # the model that is trained, whatever it is called


class Endpoint:
    """Where one run's agent reaches the model. An async context manager; ``sampling``: the task's wishes."""

    def __init__(self, ctx: RolloutContext, session: Session, sampling: Sampling | None = None) -> None:
        self.ctx = ctx  # for a reward that asks other pools
        self._session = session
        self._sampling = sampling
        self._numbers = itertools.count()
        self._loop = asyncio.get_running_loop()
        self._span = get_current()  # the run's own, which requests come from elsewhere to
        self._url: str | None = None
        self.api_key = secrets.token_urlsafe(24)  # what the client sends as its key
        self.failure: Exception | None = None
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{model:.+}", self._models)
        self._listening = listening(app, LOOPBACK, 0, setting="the endpoint of a run", shutdown_s=_CLOSE_S)

    @property
    def base_url(self) -> str:
        """The client's base URL; RuntimeError where it is not open."""
        if self._url is None:
            raise RuntimeError("the endpoint is not open")
        return self._url

    async def __aenter__(self) -> Self:
        self._url = f"http://{await self._listening.__aenter__()}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._url = None
        await self._listening.__aexit__(None, None, None)

    def once[**P, R](self, tool: Callable[P, R]) -> Callable[P, R]:
        """Return a tool of the agent's that is called once: what it returned is durable, and is told to later attempts.

        It is known by its name; takes and returns what JSON can hold. One that is not ``async`` is for agents that are
        not either: it is called in a thread.
        """
        call: Callable[P, Awaitable[Any]] = functools.partial(awaited, tool)

        async def called(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await self.ctx.call(tool.__name__, call, *args, **kwargs)

        def called_from_thread(*args: P.args, **kwargs: P.kwargs) -> Any:
            return asyncio.run_coroutine_threadsafe(called(*args, **kwargs), self._loop).result()

        made = called if inspect.iscoroutinefunction(tool) else called_from_thread
        return functools.update_wrapper(cast("Callable[P, R]", made), tool)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        if not shows_key(request, self.api_key):
            return _error(401, "this is not the key of this run", "authentication_error")
        try:
            asked = read_request(await request.read(), None)
            await self.ctx.end_turn()
            drawn = self._drawn if asked.model in (*_POLICY, self.ctx.model) else self._of_pool
            prompt_tokens, choices = await drawn(asked)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"a request has {MAX_BODY_BYTES} bytes at most", _REFUSED)
        except Exception as error:  # noqa: BLE001 (whatever the engine raises is this run's failure)
            return self._failed(error)
        shape = ChatShape(f"chatcmpl-{next(self._numbers)}", int(time.time()), asked.model, prompt_tokens, asked)
        if not asked.stream:
            return web.json_response(shape.body(choices))
        return await _stream(request, shape.chunks(choices))

    def _failed(self, error: Exception) -> web.Response:
        if isinstance(error, UnknownModelError):
            return _error(404, str(error), "not_found_error")
        # What was asked for cannot be had; the engine itself works.
        if isinstance(error, TrinityError) and isinstance(error, ChatError | ValueError):
            return _error(400, str(error), _REFUSED)
        self.failure = self.failure or error
        return _error(500, f"{type(error).__name__}: {error}", "server_error")

    async def _drawn(self, asked: ChatRequest) -> tuple[int, Choices]:
        # With how many tokens the prompt has.
        prompt = self._session.prompt(asked.messages, asked.tools, asked.options)
        choices = []
        # An answer of a shape that was asked for (response_format) is not drawn as the others are.
        asks = asked.drawn_after(prompt.token_ids, self.ctx.tokenizer)
        wishes = asks if self._sampling is None else merge_sampling(self._sampling, asks)
        how = merge_sampling(self.ctx.sampling, wishes)
        with turn_span(self.ctx.model, self.ctx.conversation, self._span) as span:
            note_messages(span, asked.messages)
            for completion in await self.ctx.generate(prompt.token_ids, wishes, asked.n):
                said = self._session.add(prompt, completion, wishes.stop or (), how)
                drawn = completion.token_ids, completion.logprobs
                choices.append((said, token_texts(self.ctx.tokenizer, *drawn) if asked.logprobs else None))
            note_replies(span, (one.message for one, _ in choices), [one.finish_reason for one, _ in choices])
        return len(prompt.token_ids), choices

    async def _of_pool(self, asked: ChatRequest) -> tuple[int, Choices]:
        how = asked.of_another_model()
        try:
            text = await self.ctx.chat(asked.messages, pool=asked.model, sampling=how)
        except LookupError as error:
            raise UnknownModelError(f"the model {asked.model[:200]!r} is not served here: {error}") from error
        return 0, [(ModelReply(text), None)]

    async def _models(self, request: web.Request) -> web.Response:
        if not shows_key(request, self.api_key):
            return _error(401, "this is not the key of this run", "authentication_error")
        asked = request.match_info.get("model")
        if asked is None:
            return web.json_response(models_body("policy"))
        if asked not in (*_POLICY, self.ctx.model):
            return _error(404, f"the model {asked[:200]!r} is not served here", "not_found_error")
        return web.json_response(model_body(asked))


async def _stream(request: web.Request, chunks: Iterable[dict[str, Any]]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for chunk in chunks:
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


def _error(status: int, message: str, kind: str) -> web.Response:
    return web.json_response(error_body(message, kind), status=status)


type Outcome = float | tuple[float, Mapping[str, float]]  # a reward, or a reward and metrics
type Agent = Callable[[Task, Endpoint], Outcome | Awaitable[Outcome]]


class AgentWorkflow(SingleRunWorkflow):
    """A workflow whose runs speak to the model over HTTP. Register the subclass."""

    @abstractmethod
    async def act(self, task: Task, model: Endpoint) -> Outcome:
        """Do the task, and say what that was worth; ``model`` has ``base_url`` and ``api_key`` for OpenAI's clients."""

    async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> list[Rollout]:
        del run_id
        session = Session(renderer_for(ctx.tokenizer))
        async with Endpoint(ctx, session, task.sampling) as model:
            outcome = await self.act(task, model)
        if model.failure is not None:
            raise model.failure
        if not session.samples:
            raise WorkflowError(f"the agent of task {task.task_id!r} asked the model nothing")
        reward, metrics = outcome if isinstance(outcome, tuple) else (outcome, {})
        told = {"reward": float(reward), **session.metrics, **metrics}
        return [sample.rollout(reward=float(reward), metrics=told) for sample in session.samples]


def agent(name: str) -> Callable[[Agent], Agent]:
    """Make a function a workflow: called for each run, in a thread of its own where it is not ``async``."""

    def add(function: Agent) -> Agent:
        async def act(self: AgentWorkflow, task: Task, model: Endpoint) -> Any:
            del self
            return await awaited(function, task, model)

        given = {"act": act, "__doc__": function.__doc__, "__module__": function.__module__}
        register(name)(type(function.__qualname__, (AgentWorkflow,), given))
        return function

    return add


_SHOWN: Final = 500


class ProgramError(TrinityError, RuntimeError):
    pass


class ProgramWorkflow(AgentWorkflow):
    """A workflow whose runs are done by a program. Register the subclass, with its ``command``."""

    command: ClassVar[Sequence[str]]  # program and arguments; no shell is involved
    timeout_s: ClassVar[float] = 600.0  # of one run
    environment: ClassVar[Mapping[str, str]] = {}  # more variables for it, beside those of the runner
    output_bytes: ClassVar[int] = 1 << 20  # how much is kept of what it prints

    @abstractmethod
    async def judge(self, task: Task, printed: str, ctx: RolloutContext) -> Outcome:
        """Return what a run was worth, by what the program has written to standard output."""

    async def act(self, task: Task, model: Endpoint) -> Outcome:
        environment = {
            **os.environ,
            **self.environment,
            "OPENAI_BASE_URL": model.base_url,
            "OPENAI_API_KEY": model.api_key,
        }
        async with guarded(self.command) as (command, descriptors):
            done = await execute(
                command,
                stdin=json.dumps(task.model_dump(mode="json", exclude_none=True)).encode(),
                wall_s=self.timeout_s,
                output_bytes=self.output_bytes,
                env=environment,
                pass_fds=descriptors,
                stop=STOP_FAMILY,
            )
        if done.timed_out:
            raise ProgramError(f"{self.command[0]} had not ended after {self.timeout_s:g} s, and was killed")
        if done.returncode != 0:
            said = done.stderr.strip()[-_SHOWN:]
            raise ProgramError(f"{self.command[0]} ended with status {done.returncode}: {said}")
        return await self.judge(task, done.stdout, model.ctx)
