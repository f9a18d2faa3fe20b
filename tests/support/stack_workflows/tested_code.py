"""A workflow for explorers of the compose stack, who mount this folder: ``passes_tests`` of the task's answer.

The stack's model writes no code, so the answer stands in for what it would have written.
"""

from schemas.task import Task
from trinity_bus import Answered, Rollout, RolloutContext, SingleRunWorkflow, prompt_tokens, register, scores


@register("tested-code")
class TestedCode(SingleRunWorkflow):
    """Rewards an answer that defines ``add``."""

    async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> Rollout:
        prompt = prompt_tokens(task, ctx.tokenizer)
        (said,) = await ctx.generate(prompt, task.sampling)
        code = f"```python\n{task.answer}\n```"
        return Rollout(
            prompt_token_ids=prompt,
            response_token_ids=said.token_ids,
            logprobs=said.logprobs,
            reward=await scores.passes_tests()(Answered(code, "assert add(1, 2) == 3", ended=True)),
            finish_reason=said.finish_reason,
            versions=said.versions,
        )
