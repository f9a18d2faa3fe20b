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
"""

import inspect
import json
import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from schemas.experience import Rollout
from schemas.task import Task
from trinity_bus.chat import Session, renderer_for
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.endpoint import Endpoint
from trinity_bus.rollout.registry import register
from trinity_bus.rollout.single_runs import SingleRunWorkflow
from trinity_bus.rollout.threads import in_thread
from trinity_bus.rollout.workflow import RolloutContext, WorkflowError
from trinity_bus.runtime.execution import STOP_FAMILY, execute, guarded

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
            if inspect.iscoroutinefunction(function):
                return await function(task, model)
            return await in_thread(function, task, model)

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
