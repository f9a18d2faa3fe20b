"""A base for workflows that are written for one run at a time.

::

    run_once x repeat_times, at once --all succeed--> their rollouts, in order, each with its run and what that took
                                     |--some-------> PartialRunsError: those that succeeded, and the first error
                                     '--none-------> the first error
"""

import asyncio
import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar

from schemas.experience import Rollout
from schemas.task import Task
from trinity_bus import awake
from trinity_bus.rollout.metrics import RUN_TIME
from trinity_bus.rollout.workflow import PartialRunsError, RolloutContext, WorkflowError


class SingleRunWorkflow(ABC):
    """Turns ``run_once`` into a workflow. Register the subclass.

    The runs share an event loop: one that blocks it blocks the others.
    """

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
        async with awake.timeout(self.run_timeout_s):
            of_run = ctx.of_run(run_id)
            given = await self.run_once(task, of_run, run_id)
            await of_run.settle()
        took = {RUN_TIME: time.perf_counter() - began}
        rollouts = [given] if isinstance(given, Rollout) else given
        if not rollouts:
            raise WorkflowError(f"run {run_id} of task {task.task_id!r} gave no rollout")
        return [dataclasses.replace(one, run_id=run_id, metrics={**one.metrics, **took}) for one in rollouts]


async def _ended(*runs: Coroutine[Any, Any, list[Rollout]]) -> list[list[Rollout] | BaseException]:
    return await asyncio.gather(*runs, return_exceptions=True)
