"""Packages whose stand-ins other tests bring, as they really are.

Each is skipped where its package is not installed: ``pip install trinity-bus[verifiers,gym]``.
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas import Task
from trinity_bus.rollout import REGISTRY
from trinity_bus.rollout.workflows import gym
from trinity_bus.testing import ScriptedEngine, run_workflow

SUMS = '''
"""An environment as users of verifiers write them."""

import verifiers as vf
from datasets import Dataset

def load_environment(hard):
    assert hard

    async def right(completion, answer) -> float:
        if completion[-1]["content"] == "fail":
            raise OSError("the sandbox is gone")
        return float(completion[-1]["content"] == answer)

    async def length(completion) -> float:
        return float(len(completion[-1]["content"]))

    rubric = vf.Rubric(funcs=[right])
    rubric.add_metric(length)
    rows, exam = (Dataset.from_list([{"question": f"{n} + {n}?", "answer": str(2 * n)}]) for n in (1, 2))
    return vf.SingleTurnEnv(dataset=rows, eval_dataset=exam, rubric=rubric)
'''


def _needs(module: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"not run: {module} is not installed")


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    (tmp_path / "acme_sums.py").write_text(SUMS)
    yield
    REGISTRY.pop("real-sums", None)
    sys.modules.pop("acme_sums", None)


@_needs("verifiers")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("batch_type", "reward"), [("train", 1.0), ("eval", 0.0)])
async def test_an_environment_of_verifiers_gives_its_reward(sums: None, batch_type: Any, reward: float) -> None:
    from trinity_bus.rollout.verifiers import environment

    environment("real-sums", "acme-sums", hard=True)
    task = Task(workflow="real-sums", data={"row": 0}, batch_type=batch_type)
    engine = ScriptedEngine(["2"])
    (rollout,) = await run_workflow(REGISTRY["real-sums"], task, engine)
    assert (rollout.reward, rollout.metrics["right"], rollout.metrics["length"]) == (reward, reward, 1.0)
    assert ("1 + 1?" if batch_type == "train" else "2 + 2?") in engine.requests[0].prompt
    assert list(rollout.response_token_ids) == [ord("2"), 0]


@_needs("reasoning_gym")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["basic_arithmetic", "countdown", "maze"])
async def test_a_puzzle_of_reasoning_gym_is_made_again_and_judged_by_who_made_it(name: str) -> None:
    gym._puzzles.cache_clear()
    seed, number = gym.puzzle_at(3, 7)
    puzzle = gym.puzzles(name, {}, seed)[number]
    gym._puzzles.cache_clear()
    data = {"gym": name, "options": {}, "seed": seed, "number": number}
    task = Task(workflow="reasoning-gym", prompt=puzzle["question"], answer=puzzle["answer"] or "", data=data)
    right = puzzle["answer"] or puzzle["metadata"]["expression"]
    said = [f"So <answer>{right}</answer>", "<answer>none</answer>"]
    good, bad = await run_workflow(
        REGISTRY["reasoning-gym"], task.model_copy(update={"repeat_times": 2}), ScriptedEngine(said)
    )
    assert good.reward == 1.0
    assert bad.reward < 0.1
