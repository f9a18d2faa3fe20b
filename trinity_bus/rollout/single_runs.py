"""A base for workflows that are written for one run at a time.

::

    run_once x repeat_times, at once --all succeed--> their rollouts, in order
                                     |--some-------> PartialRunsError: those that succeeded, and the first error
                                     '--none-------> the first error
"""

import asyncio
from abc import ABC, abstractmethod

from schemas.experience import Rollout
from schemas.task import Task
from trinity_bus.rollout.workflow import PartialRunsError, RolloutContext


class SingleRunWorkflow(ABC):
    """Turns ``run_once`` into a workflow. Register the subclass.

    The runs share an event loop: one that blocks it blocks the others.
    """

    name: str

    @abstractmethod
    async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> Rollout:
        """Run the task once.

        Args:
            task: What to do.
            ctx: What to do it with. Its ``repeat_times`` are of the group, not of this run.
            run_id: Which run of the task this is.
        """

    async def run(self, task: Task, ctx: RolloutContext) -> list[Rollout]:
        """See ``Workflow.run``.

        Raises:
            PartialRunsError: Some runs broke off; it carries the others.
            Exception: The first error, where all did.
        """
        ids = range(ctx.run_id_base, ctx.run_id_base + ctx.repeat_times)
        ended = await asyncio.gather(*(self.run_once(task, ctx, run_id) for run_id in ids), return_exceptions=True)
        errors = [one for one in ended if isinstance(one, BaseException)]
        if not errors:
            return [one for one in ended if not isinstance(one, BaseException)]
        if len(errors) == len(ended):
            raise errors[0]
        raise PartialRunsError([one for one in ended if not isinstance(one, BaseException)], errors[0])
