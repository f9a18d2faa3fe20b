"""One prompt, one response, one reward: the frame of every single-turn workflow."""

from typing import Protocol

from schemas.experience import Rollout
from schemas.task import Task
from trinity_bus.rollout.workflow import RolloutContext, WorkflowError, prompt_tokens


class Reward(Protocol):
    """Judges one response."""

    async def __call__(self, response: str, answer: str, *, ended: bool) -> float:
        """Return the reward of a response text, given the reference answer and whether the model ended it itself."""
        ...


async def run_single_turn(task: Task, ctx: RolloutContext, reward: Reward) -> list[Rollout]:
    """Ask for all runs of a task at once, so that the engine shares the prompt, and reward each response.

    Args:
        task: With ``answer``, and ``prompt`` or ``messages``.
        ctx: Where to generate, and how many.
        reward: Judges each response.

    Raises:
        WorkflowError: The task has no answer, or its prompt cannot be tokenized.
    """
    if task.answer is None:
        raise WorkflowError(f"task {task.task_id!r} has no answer, which workflow {task.workflow!r} needs")
    prompt = prompt_tokens(task, ctx.tokenizer)
    rollouts = []
    for completion in await ctx.generate(prompt, task.sampling, ctx.repeat_times):
        text = ctx.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        value = await reward(text, task.answer, ended=completion.finish_reason == "stop")
        rollouts.append(
            Rollout(
                prompt_token_ids=prompt,
                response_token_ids=completion.token_ids,
                logprobs=completion.logprobs,
                reward=value,
                metrics={
                    "reward": value,
                    "exact": float(value == 1.0),
                    "response_tokens": float(len(completion.token_ids)),
                    "truncated": float(completion.finish_reason == "length"),
                },
                finish_reason=completion.finish_reason,
                versions=completion.versions,
            )
        )
    return rollouts
