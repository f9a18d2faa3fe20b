"""The workflow ``taught``: the model answers, and a larger one says how likely it finds each token of the answer."""

from trinity_bus import Rollout, RolloutContext, SingleRunWorkflow, Task, prompt_tokens, register
from trinity_bus.rollout.equivalence import CHECKER
from trinity_bus.rollout.rewards import math_reward


@register("taught")
class Taught(SingleRunWorkflow):
    """Asks the pool ``teacher``; the reward, whether the answer is right, is for people to see."""

    async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> Rollout:
        """See ``SingleRunWorkflow.run_once``."""
        del run_id
        prompt = prompt_tokens(task, ctx.tokenizer)
        (said,) = await ctx.generate(prompt, task.sampling)
        text = ctx.tokenizer.decode(said.token_ids, skip_special_tokens=True)
        reward = await math_reward(text, task.answer or "", CHECKER.same)
        return Rollout(
            prompt_token_ids=prompt,
            response_token_ids=said.token_ids,
            logprobs=said.logprobs,
            reward=reward,
            metrics={"reward": reward},
            finish_reason=said.finish_reason,
            versions=said.versions,
            kept=said.kept,
            teacher_logprobs=await ctx.score(prompt, said.token_ids, pool="teacher"),
        )
