"""reasoning-gym, whose stand-in other tests bring, as it really is: skipped without ``trinity-bus[gym]``."""

import importlib.util

import pytest

from schemas import Task
from trinity_bus.rollout import workflows
from trinity_bus.rollout.registry import REGISTRY
from trinity_bus.testing import ScriptedEngine, run_workflow


@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="not run: it is not installed")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["basic_arithmetic", "countdown", "maze"])
async def test_a_puzzle_of_reasoning_gym_is_made_again_and_judged_by_who_made_it(name: str) -> None:
    workflows._puzzles.cache_clear()
    seed, number = workflows.puzzle_at(3, 7)
    puzzle = workflows.puzzles(name, {}, seed)[number]
    workflows._puzzles.cache_clear()
    data = {"gym": name, "options": {}, "seed": seed, "number": number}
    task = Task(workflow="reasoning-gym", prompt=puzzle["question"], answer=puzzle["answer"] or "", data=data)
    right = puzzle["answer"] or puzzle["metadata"]["expression"]
    said = [f"So <answer>{right}</answer>", "<answer>none</answer>"]
    good, bad = await run_workflow(
        REGISTRY["reasoning-gym"], task.model_copy(update={"repeat_times": 2}), ScriptedEngine(said)
    )
    assert good.reward == 1.0
    assert bad.reward < 0.1
