"""The workflows that come with the project: one prompt, one response, one reward. Importing this registers them.

With ``data={"greedy_baseline": true}`` the first run of a task that is trained on is drawn at temperature 0: what an
advantage such as ReMax compares the others with.

``math``: a question, a worked answer, and a check of the final answer.

``sequence``: say these words in this order. Partial credit makes it learnable from random weights.

``reasoning-gym``: a puzzle that a program has made, judged by the program that made it. A task names kind, options,
seed and number of its puzzle, which is made again from these to be judged: what the judge needs to know of it does not
travel. The name is looked up in reasoning-gym's own registry.
"""

import dataclasses
import itertools
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol

from schemas.experience import Rollout
from schemas.sampling import Sampling
from schemas.task import Task
from trinity_bus.chat import Completion
from trinity_bus.rollout.equivalence import CHECKER
from trinity_bus.rollout.registry import register
from trinity_bus.rollout.rewards import math_reward, sequence_reward
from trinity_bus.rollout.workflow import RolloutContext, WorkflowError, merge_sampling, prompt_messages, prompt_tokens
from trinity_bus.telemetry.generative import content_span, note_messages, note_replies


@dataclass(frozen=True, slots=True)
class Answered:
    text: str  # what the model wrote, without special tokens
    answer: str = ""  # the reference
    ended: bool = True  # the model ended it itself; False where a limit cut it
    question: str = ""  # What it was asked: the prompt, or the contents of the messages, one after the other
    # of its run: what a reward asks other pools with
    ctx: RolloutContext | None = field(default=None, repr=False, compare=False)
    # what a reward tells of its parts; they become metrics of the run
    metrics: dict[str, float] = field(default_factory=dict, repr=False, compare=False)


class Reward(Protocol):
    async def __call__(self, said: Answered) -> float: ...


def question_of(task: Task) -> str:
    return "\n\n".join(str(message["content"]) for message in prompt_messages(task) if message.get("content"))


async def run_single_turn(task: Task, ctx: RolloutContext, reward: Reward) -> list[Rollout]:
    """Ask for all runs of a task at once, so that the engine shares the prompt, and reward each response.

    The task has ``answer``, and ``prompt`` or ``messages``; else WorkflowError.
    """
    if task.answer is None:
        raise WorkflowError(f"task {task.task_id!r} has no answer, which workflow {task.workflow!r} needs")
    prompt = prompt_tokens(task, ctx.tokenizer)
    with content_span(ctx.model, ctx.conversation) as span:
        note_messages(span, prompt_messages(task))
        drawn = await _drawn(task, ctx, prompt)
        texts = [ctx.tokenizer.decode(one.token_ids, skip_special_tokens=True) for _, one in drawn]
        replies = ({"role": "assistant", "content": text} for text in texts)
        note_replies(span, replies, [one.finish_reason for _, one in drawn])
    rollouts, question = [], question_of(task)
    for text, (sampling, completion) in zip(texts, drawn, strict=True):
        said = Answered(text, task.answer, completion.finish_reason == "stop", question, ctx)
        value = await reward(said)
        rollouts.append(
            Rollout(
                prompt_token_ids=prompt,
                response_token_ids=completion.token_ids,
                logprobs=completion.logprobs,
                reward=value,
                metrics={
                    **said.metrics,
                    "reward": value,
                    "exact": float(value == 1.0),
                    "response_tokens": float(len(completion.token_ids)),
                    "truncated": float(completion.finish_reason == "length"),
                },
                finish_reason=completion.finish_reason,
                versions=completion.versions,
                sampling=merge_sampling(ctx.sampling, sampling),
                routes=completion.routes,
                kept=completion.kept,
            )
        )
    return rollouts


async def _drawn(task: Task, ctx: RolloutContext, prompt: list[int]) -> list[tuple[Sampling | None, Completion]]:
    # For each run, and how it was asked for.
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


async def _final_answer(said: Answered) -> float:
    # A response that was cut at a limit may still hold its answer.
    return await math_reward(said.text, said.answer, CHECKER.same)


@register("math")
class MathWorkflow:
    """Rewards 1 for a response whose final answer equals the task's ``answer``, and 0 otherwise.

    Where a number is wanted they are compared as exact numbers, formulas by ``math-verify``, and all else as text.
    """

    name: str

    async def run(self, task: Task, ctx: RolloutContext) -> list[Rollout]:
        return await run_single_turn(task, ctx, _final_answer)


async def _words_in_place(said: Answered) -> float:
    return sequence_reward(said.text, said.answer, ended=said.ended)


@register("sequence")
class SequenceWorkflow:
    """Rewards the share of the answer's words that the response has in their places; the demo's workflow."""

    name: str

    async def run(self, task: Task, ctx: RolloutContext) -> list[Rollout]:
        return await run_single_turn(task, ctx, _words_in_place)


_CHUNK: Final = 500  # Puzzles of one seed; what reasoning-gym makes by default, and some of its kinds make at once


def puzzle_at(place: int, seed: int) -> tuple[int, int]:
    """Return the seed and the number of the puzzle at a place, of which there is no last."""
    chunk, number = divmod(place, _CHUNK)
    return zlib.crc32(f"{seed}/{chunk}".encode()), number


def puzzles(name: str, options: Mapping[str, Any], seed: int) -> Any:
    """Return what makes the puzzles of a seed: the one of a number is always the same."""
    return _puzzles(name, json.dumps(options, sort_keys=True), seed)


@lru_cache(maxsize=32)
def _puzzles(name: str, options: str, seed: int) -> Any:
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=_CHUNK, **json.loads(options))
    except (AssertionError, TypeError, ValueError) as error:
        raise WorkflowError(f"reasoning-gym has no {name!r} with the options {options}: {error}") from error


@register("reasoning-gym")
class GymWorkflow:
    """Rewards what reasoning-gym says that an answer is worth, from 0 to 1.

    The answer is what stands in ``<answer>...</answer>``, the last of several; without that, all of the response.
    """

    name: str

    async def run(self, task: Task, ctx: RolloutContext) -> list[Rollout]:
        try:
            made = puzzles(str(task.data["gym"]), task.data["options"], int(task.data["seed"]))
            entry = made[int(task.data["number"])]
        except (LookupError, TypeError, ValueError) as error:
            raise WorkflowError(f"task {task.task_id!r} does not say which puzzle it is: {error!r}") from error
        # There are puzzles that have many answers, and name none.
        if (entry["answer"] or "") != task.answer:
            raise WorkflowError(
                f"task {task.task_id!r} was made by another version of reasoning-gym: its answer is {task.answer!r} "
                f"there, and {entry['answer']!r} here"
            )

        async def judge(said: Answered) -> float:
            _, opened, rest = said.text.rpartition("<answer>")
            answer = rest.partition("</answer>")[0] if opened else said.text
            return float(made.score_answer(answer.strip(), entry))

        return await run_single_turn(task, ctx, judge)
