"""One prompt, one response, one reward: the frame of every single-turn workflow."""

from dataclasses import dataclass
from typing import Protocol

from schemas.experience import Rollout
from schemas.task import Task
from trinity_bus.rollout.workflow import RolloutContext, WorkflowError, prompt_tokens


@dataclass(frozen=True, slots=True)
class Answered:
    """One response, as it is judged."""

    text: str
    """What the model wrote, without special tokens."""
    answer: str = ""
    """The reference."""
    ended: bool = True
    """Whether the model ended it itself; False where a limit cut it."""
    question: str = ""
    """What it was asked: the prompt, or the contents of the messages, one after the other."""


class Reward(Protocol):
    """Judges one response."""

    async def __call__(self, said: Answered) -> float:
        """Return the reward of a response."""
        ...


def question_of(task: Task) -> str:
    """Return what a task asks, as text."""
    if task.prompt is not None:
        return task.prompt
    return "\n\n".join(str(message.content) for message in task.messages or () if message.content)


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
        value = await reward(Answered(text, task.answer, completion.finish_reason == "stop", question_of(task)))
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
