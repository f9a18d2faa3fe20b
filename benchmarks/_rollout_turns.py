"""A workflow of a benchmark: so many turns, of so many tokens each, kept on the log or not.

It is named by ``explorer.workflow_modules``.
"""

import time
from statistics import fmean

from schemas.experience import Rollout
from schemas.task import Task
from trinity_bus.rollout.registry import register
from trinity_bus.rollout.single_runs import SingleRunWorkflow
from trinity_bus.rollout.workflow import RolloutContext

SAID = 5
EARLY, LATE = 8, 128
"""Turns whose time is told."""
AROUND = 4
"""So many before and after are told along."""


def prompt_length(prompt: int, drawn: int, turn: int) -> int:
    """Tokens of the prompt of a turn, which are counted from 1."""
    return prompt + (turn - 1) * (drawn + 1)


def around(turn: int) -> range:
    return range(turn - AROUND, turn + 1)


@register("bench-turns")
class TurnsWorkflow(SingleRunWorkflow):
    async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> Rollout:
        """See ``SingleRunWorkflow``. The task's data: ``prompt``, ``turns``, ``keep``."""
        del run_id
        prompt: list[int] = list(task.data["prompt"])
        tokens, logprobs, mask = list(prompt), [0.0] * 0, [False] * 0
        took: dict[int, float] = {}
        for turn in range(1, int(task.data["turns"]) + 1):
            began = time.perf_counter()
            (drawn,) = await ctx.generate(tokens, task.sampling)
            tokens += [*drawn.token_ids, SAID]
            logprobs += [*drawn.logprobs, 0.0]
            mask += [*[True] * len(drawn.token_ids), False]
            if task.data["keep"]:
                await ctx.end_turn()
            took[turn] = time.perf_counter() - began
        told = {f"turn_{at}_s": fmean(took[turn] for turn in around(at)) for at in (EARLY, LATE) if at in took}
        return Rollout(
            prompt_token_ids=prompt,
            response_token_ids=tokens[len(prompt) :],
            logprobs=logprobs,
            mask=mask,
            reward=0.0,
            metrics=told,
        )
