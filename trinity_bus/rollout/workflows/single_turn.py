"""One prompt, one response, one reward: the frame of every single-turn workflow.

With ``data={"greedy_baseline": true}`` the first run of a task that is trained on is drawn at temperature 0: what an
advantage such as ReMax compares the others with.
"""

import dataclasses
import itertools
from typing import Protocol

from schemas.experience import Rollout
from schemas.sampling import Sampling
from schemas.task import Task
from trinity_bus.chat import Completion
from trinity_bus.rollout.workflow import RolloutContext, WorkflowError, merge_sampling, prompt_tokens


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
    for sampling, completion in await _drawn(task, ctx, prompt):
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
                sampling=merge_sampling(ctx.sampling, sampling),
            )
        )
    return rollouts


async def _drawn(task: Task, ctx: RolloutContext, prompt: list[int]) -> list[tuple[Sampling | None, Completion]]:
    """Return a response for each run, and how it was asked for."""
    if not (task.data.get("greedy_baseline") is True and ctx.batch_type == "train" and ctx.run_id_base == 0):
        return [(task.sampling, one) for one in await ctx.generate(prompt, task.sampling, ctx.repeat_times)]
    greedy = (task.sampling or Sampling()).model_copy(update={"temperature": 0.0})
    # A context of its own: what the other runs draw does not hang on who draws the first.
    baseline = await dataclasses.replace(ctx, requests=itertools.count()).generate(prompt, greedy)
    drawn: list[tuple[Sampling | None, Completion]] = [(greedy, one) for one in baseline]
    if left := ctx.repeat_times - 1:
        others = await dataclasses.replace(ctx, run_id_base=1).generate(prompt, task.sampling, left)
        drawn += [(task.sampling, one) for one in others]
    return drawn
