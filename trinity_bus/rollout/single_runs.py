"""Bases for workflows that are written for one run at a time.

::

    run_once x repeat_times, at once --all succeed--> their rollouts, in order, each with its run and what that took
                                     |--some-------> PartialRunsError: those that succeeded, and the first error
                                     '--none-------> the first error

A ``Reusable`` keeps the task that it works on: each run has an instance to itself::

    a run begins --> an idle instance, or a new one --> reset(task) --> run(ctx, run_id) --returned--> idle
                                                                             '--raised, cancelled--> dropped

The runs of a task are done at once where ``run`` is ``async``, each in a thread of its own where it is not, one after
the other where ``sequential`` is True.
"""

import asyncio
import dataclasses
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ClassVar

from schemas.experience import Rollout
from schemas.task import Task
from trinity_bus import awake
from trinity_bus.rollout.metrics import RUN_TIME
from trinity_bus.rollout.registry import register
from trinity_bus.rollout.threads import BlockingContext, in_thread
from trinity_bus.rollout.workflow import PartialRunsError, RolloutContext, WorkflowError
from trinity_bus.telemetry.generative import agent_span


class SingleRunWorkflow(ABC):
    """Turns ``run_once`` into a workflow. Register the subclass. A run that blocks the event loop blocks the others."""

    name: str
    sequential: ClassVar[bool] = False  # The runs of a task are done one after the other, rather than at once
    # A run that takes longer breaks off, and costs no other; None: it may take as long as the attempt may
    run_timeout_s: ClassVar[float | None] = None

    @abstractmethod
    async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> Rollout | Sequence[Rollout]:
        """Run the task once, and return its rollout, or those of its steps. ``ctx.repeat_times`` are of the group."""

    async def run(self, task: Task, ctx: RolloutContext) -> list[Rollout]:
        ids = range(ctx.run_id_base, ctx.run_id_base + ctx.repeat_times)
        if self.sequential:
            ended = [one for run_id in ids for one in await _ended(self._timed(task, ctx, run_id))]
        else:
            ended = await _ended(*(self._timed(task, ctx, run_id) for run_id in ids))
        errors = [one for one in ended if isinstance(one, BaseException)]
        rollouts = [rollout for one in ended if not isinstance(one, BaseException) for rollout in one]
        if not errors:
            return rollouts
        if not rollouts:
            raise errors[0]
        raise PartialRunsError(rollouts, errors[0])

    async def _timed(self, task: Task, ctx: RolloutContext, run_id: int) -> list[Rollout]:
        began = time.perf_counter()
        of_run = ctx.of_run(run_id)
        with agent_span(task.workflow, ctx.model, of_run.conversation):
            async with awake.timeout(self.run_timeout_s):
                given = await self.run_once(task, of_run, run_id)
                await of_run.settle()
        took = {RUN_TIME: time.perf_counter() - began}
        rollouts = [given] if isinstance(given, Rollout) else given
        if not rollouts:
            raise WorkflowError(f"run {run_id} of task {task.task_id!r} gave no rollout")
        return [dataclasses.replace(one, run_id=run_id, metrics={**one.metrics, **took}) for one in rollouts]


async def _ended(*runs: Coroutine[Any, Any, list[Rollout]]) -> list[list[Rollout] | BaseException]:
    return await asyncio.gather(*runs, return_exceptions=True)


MAX_IDLE = 1024  # instances that wait to be used again

type Rollouts = Rollout | Sequence[Rollout]


class Reusable(ABC):
    """A workflow whose instances are reset and used again: one run at a time, and then another."""

    sequential = False  # The runs of a task are done one after the other, rather than at once

    @abstractmethod
    def reset(self, task: Task) -> None:
        """Forget the run before, and take this task."""

    @abstractmethod
    def run(self, ctx: Any, run_id: int) -> Rollouts | Awaitable[Rollouts]:
        """Run the task that it was reset to; where this is not ``async``, ``ctx`` is a ``BlockingContext``."""


class _Reusing(SingleRunWorkflow):
    make: Callable[[], Reusable]

    def __init__(self) -> None:
        self._idle: list[Reusable] = []

    async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> Rollouts:
        instance = self._idle.pop() if self._idle else type(self).make()
        instance.reset(task)
        given: Any
        if inspect.iscoroutinefunction(instance.run):
            given = await instance.run(ctx, run_id)
        else:
            async with BlockingContext(ctx) as blocking:
                given = await in_thread(instance.run, blocking, run_id)
        if len(self._idle) < MAX_IDLE:
            self._idle.append(instance)
        rollouts: Rollouts = given
        return rollouts


def reused[R: Reusable](name: str) -> Callable[[type[R]], type[R]]:
    """Class decorator: register a workflow whose runs have instances of this class, made without arguments."""

    def add(cls: type[R]) -> type[R]:
        given = {"make": cls, "sequential": cls.sequential, "__doc__": cls.__doc__, "__module__": cls.__module__}
        register(name)(type(cls.__qualname__, (_Reusing,), given))
        return cls

    return add
