"""Classes that keep the task that they work on, as workflows: each run has an instance to itself, which is used again.

::

    a run begins --> an idle instance, or a new one --> reset(task) --> run(ctx, run_id) --returned--> idle
                                                                             '--raised, cancelled--> dropped

So what an instance keeps in itself (``self.task``, an environment, a client) is of one run at a time, though the one
instance of a workflow in the registry serves all tasks of its kind at once.

==================================  ==========================================
the runs of a task are done         where
==================================  ==========================================
at once                             ``run`` is ``async``
each in a thread of its own         ``run`` is not: it may block
one after the other                 ``sequential`` is True, in either case
==================================  ==========================================
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from schemas.experience import Rollout
from schemas.task import Task
from trinity_bus.rollout.registry import register
from trinity_bus.rollout.single_runs import SingleRunWorkflow
from trinity_bus.rollout.threads import BlockingContext, in_thread
from trinity_bus.rollout.workflow import RolloutContext

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
