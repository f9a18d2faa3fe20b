"""``sequence``: say these words in this order. Partial credit makes it learnable from random weights."""

from schemas.experience import Rollout
from schemas.task import Task
from trinity_bus.rollout.registry import register
from trinity_bus.rollout.rewards import sequence_reward
from trinity_bus.rollout.workflow import RolloutContext
from trinity_bus.rollout.workflows.single_turn import Answered, run_single_turn


async def _reward(said: Answered) -> float:
    return sequence_reward(said.text, said.answer, ended=said.ended)


@register("sequence")
class SequenceWorkflow:
    """Rewards the share of the answer's words that the response has in their places; the demo's workflow."""

    name: str

    async def run(self, task: Task, ctx: RolloutContext) -> list[Rollout]:
        return await run_single_turn(task, ctx, _reward)
