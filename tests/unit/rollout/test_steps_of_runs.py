"""Runs of several steps: as many experiences as steps, and each run counts once, however the runs are shared out."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from schemas import ExperienceGroup, Position, RolloutFinished, Task
from schemas.groups.pieces import join_groups
from tests.support.fakes.mesh_records import dispatch
from trinity_bus.coordination.batches.parts import split
from trinity_bus.rollout import Rollout, RolloutContext, SingleRunWorkflow
from trinity_bus.rollout.answer import decode_answer, encode_answer
from workers.explorer.outcome import finished


class Steps(SingleRunWorkflow):
    """Some experiences of each run; what is told of a run is what all of them tell."""

    name = "steps"

    def __init__(self, steps: int) -> None:
        self.steps = steps

    async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> Sequence[Rollout]:
        return [
            Rollout(
                prompt_token_ids=[1],
                response_token_ids=[2 + step],
                logprobs=[-1.0],
                reward=float(run_id),
                metrics={"step": float(step), "tokens:sum": 10.0 * (step + 1), "step:last": float(step)},
            )
            for step in range(self.steps)
        ]


async def rolled_out(
    task: Task, runs: int, per_part: int | None, steps: int
) -> list[tuple[ExperienceGroup, RolloutFinished]]:
    """What the attempts at the parts of a task give, and what their explorer says of them."""
    found = []
    for part in split(runs, per_part):
        shared: Any = {"repeat_times": part.runs, "run_id_base": part.run_id_base}
        order = dispatch(explorer="e", incarnation="i", task=task, attempt=part.index + 1, **shared)
        context = RolloutContext(engine=None, tokenizer=None, **shared)  # type: ignore[arg-type]
        rollouts = await Steps(steps).run(task, context)
        group = decode_answer(order, encode_answer(order, rollouts, "policy"), "policy")
        found.append((group, finished(order, group, experience=Position(partition=0, offset=0), seconds=1.0)))
    return found


@pytest.mark.parametrize(
    ("tasks", "runs", "per_part", "steps", "experiences"), [(4, 3, None, 2, 24), (5, 4, 2, 3, 60), (4, 3, 1, 3, 36)]
)
async def test_as_many_experiences_as_steps_of_all_runs(
    tasks: int, runs: int, per_part: int | None, steps: int, experiences: int
) -> None:
    seen = 0
    for number in range(tasks):
        parts = await rolled_out(Task(workflow="steps", prompt=str(number)), runs, per_part, steps)
        events = [event for _, event in parts]
        assert {event.status for event in events} == {"completed"}
        assert sum(event.completed_runs for event in events) == runs
        told = [metrics for event in events for metrics in event.metrics]
        assert [metrics["step"] for metrics in told] == [(steps - 1.0) / 2] * runs, "one of each run, of all its steps"
        assert [metrics["tokens:sum"] for metrics in told] == [5.0 * steps * (steps + 1)] * runs
        assert [metrics["step:last"] for metrics in told] == [steps - 1.0] * runs
        whole = join_groups([group for group, _ in parts])
        assert Counter(whole.run_ids.tolist()) == dict.fromkeys(range(runs), steps)
        assert sum(event.samples for event in events) == len(whole)
        seen += len(whole)
    assert seen == experiences
