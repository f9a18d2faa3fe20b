"""Agents that someone else wrote, as workflows: any function that speaks to a model with a client of OpenAI's.

::

    run --> Endpoint (a URL and a key of this run) --> the function, with its own client, loop and tools
                  |                                        |
                  '--> every turn, as it was drawn         '--> its reward, for all samples of the run

Failures: what the function raises is the failure of its run. An engine that fails fails the run, though the function
may have passed over it. A function that asks the model nothing gives nothing to train on, and fails.
"""

import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from schemas.experience import Rollout
from schemas.task import Task
from trinity_bus.chat import Session, renderer_for
from trinity_bus.rollout.endpoint import Endpoint
from trinity_bus.rollout.registry import register
from trinity_bus.rollout.single_runs import SingleRunWorkflow
from trinity_bus.rollout.threads import in_thread
from trinity_bus.rollout.workflow import RolloutContext, WorkflowError

type Outcome = float | tuple[float, Mapping[str, float]]  # a reward, or a reward and metrics
type Agent = Callable[[Task, Endpoint], Outcome | Awaitable[Outcome]]


class AgentWorkflow(SingleRunWorkflow):
    """A workflow whose runs speak to the model over HTTP. Register the subclass."""

    @abstractmethod
    async def act(self, task: Task, model: Endpoint) -> Outcome:
        """Do the task, and say what that was worth.

        ``model`` has ``base_url`` and ``api_key`` for a client of OpenAI's.
        """

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
    """Decorate a function: make it a workflow of this name.

    The function is called once for each run, with the task and the run's ``Endpoint``. One that is not ``async`` runs
    in a thread of its own.
    """

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
