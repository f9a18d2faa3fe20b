from typing import Any

import pytest

from schemas import Sampling, Task
from schemas.experience import Rollout
from schemas.groups.grouping import build_group
from schemas.groups.trainable import Bounds
from trinity_bus.rollout.workflow import (
    RolloutContext,
    UnknownSamplingError,
    merge_sampling,
    note_sampling,
    sampling_of_rest,
)
from trinity_bus.testing import ScriptedEngine, run_workflow
from trinity_bus.training.steps.choice import left_out

HOT, COLD = Sampling(temperature=1.0), Sampling(temperature=0.5, top_p=0.9)


def rollout(**changes: Any) -> Rollout:
    return Rollout(prompt_token_ids=[1], response_token_ids=[2], logprobs=[-1.0], reward=0.0, **changes)


class Asks:
    """Asks the engine once in each of these ways."""

    name = "asks"

    def __init__(self, *ways: Sampling | None, tells: bool = False) -> None:
        self.ways = ways
        self.tells = tells

    async def run(self, task: Task, ctx: RolloutContext) -> list[Rollout]:
        for way in self.ways:
            await ctx.generate([1], way)
        return [rollout(sampling=merge_sampling(ctx.sampling, way) if self.tells else None) for way in self.ways]


def task(runs: int, batch_type: Any = "train") -> Task:
    return Task(workflow="asks", prompt="?", repeat_times=runs, batch_type=batch_type)


def test_a_sample_is_drawn_as_the_engine_was_asked_and_lengths_and_seeds_are_no_other_way() -> None:
    own = rollout(sampling=HOT)
    assert sampling_of_rest([rollout(), own], [COLD]) == COLD
    assert sampling_of_rest([own], [COLD, HOT]) is sampling_of_rest([rollout()], []) is None
    asked: list[Sampling] = []
    for seed in range(3):
        note_sampling(asked, Sampling(temperature=1.0, seed=seed, max_tokens=seed + 1))
    note_sampling(asked, COLD)
    assert [one.temperature for one in asked] == [1.0, 0.5]


async def test_a_workflow_that_asks_in_several_ways_says_which_sample_is_which() -> None:
    engine = ScriptedEngine(lambda _: "x")
    await run_workflow(Asks(HOT, HOT), task(2), engine)
    await run_workflow(Asks(HOT, COLD, tells=True), task(2), engine)
    with pytest.raises(UnknownSamplingError, match=r"asked to draw in 2 ways \(.*'temperature': 0.5, 'top_p': 0.9"):
        await run_workflow(Asks(HOT, COLD), task(2), engine)
    await run_workflow(Asks(HOT, COLD), task(2, "eval"), engine)


def test_an_altered_distribution_is_another_way_to_draw_and_the_trainer_leaves_it_out() -> None:
    altered = Sampling(min_tokens=1)
    asked: list[Sampling] = []
    for way in (HOT, altered):
        note_sampling(asked, way)
    with pytest.raises(UnknownSamplingError, match="2 ways"):
        sampling_of_rest([rollout()], asked)
    names = ("task_id", "batch_id", "workflow", "model", "explorer", "incarnation")
    described: dict[str, Any] = dict.fromkeys(names, "a")
    ways = [rollout(sampling=altered), rollout(sampling=HOT), rollout()]
    group = build_group(ways, sampling=altered, attempt=1, batch_type="train", **described)
    (left,) = left_out([group], Bounds(vocabulary=32, positions=128), train_limited=False, wants_greedy=False)
    assert (left.reason, left.samples) == ("limited_sampling", [0, 2])
