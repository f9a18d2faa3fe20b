"""``math``: a question, a worked answer, and a check of the final answer."""

from schemas.experience import Rollout
from schemas.task import Task
from trinity_bus.rollout.equivalence import CHECKER
from trinity_bus.rollout.registry import register
from trinity_bus.rollout.rewards import math_reward
from trinity_bus.rollout.workflow import RolloutContext
from trinity_bus.rollout.workflows.single_turn import Answered, run_single_turn


async def _reward(said: Answered) -> float:
    # A response that was cut at a limit may still hold its answer.
    return await math_reward(said.text, said.answer, CHECKER.same)


@register("math")
class MathWorkflow:
    """Rewards 1 for a response whose final answer equals the task's ``answer``, and 0 otherwise.

    Where a number is wanted they are compared as exact numbers, formulas by ``math-verify``, and all else as text.
    """

    name: str

    async def run(self, task: Task, ctx: RolloutContext) -> list[Rollout]:
        return await run_single_turn(task, ctx, _reward)
