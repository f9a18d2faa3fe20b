"""``reasoning-gym``: a puzzle that a program has made, judged by the program that made it.

A task names kind, options, seed and number of its puzzle, which is made again from these to be judged: what the judge
needs to know of it does not travel. The name is looked up in reasoning-gym's own registry.
"""

import json
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from schemas.experience import Rollout
from schemas.task import Task
from trinity_bus.rollout.registry import register
from trinity_bus.rollout.workflow import RolloutContext, WorkflowError
from trinity_bus.rollout.workflows.single_turn import Answered, run_single_turn

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
            return float(made.score_answer(answer_in(said.text), entry))

        return await run_single_turn(task, ctx, judge)


def answer_in(response: str) -> str:
    _, opened, rest = response.rpartition("<answer>")
    return (rest.partition("</answer>")[0] if opened else response).strip()
