"""Workflows that are written for one run, and what a workflow says of itself."""

import asyncio

import pytest

from schemas.experience import Rollout
from schemas.task import Task
from trinity_bus.rollout.registry import REGISTRY
from trinity_bus.rollout.single_runs import Reusable, SingleRunWorkflow, reused
from trinity_bus.rollout.workflow import MAX_STATE_BYTES, PartialRunsError, RolloutContext, WorkflowError

TASK = Task(task_id="t", workflow="mine", prompt="x")


class Mine(SingleRunWorkflow):
    def __init__(self, broken: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.broken = broken
        self.together = self.most = 0
        self.asked: list[tuple[int, int]] = []

    async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> Rollout:
        self.asked.append((ctx.run_id_base, next(ctx.requests)))
        self.together += 1
        self.most = max(self.most, self.together)
        await asyncio.sleep(0)
        self.together -= 1
        if run_id in self.broken:
            raise ValueError(f"run {run_id} broke off")
        return Rollout(prompt_token_ids=[1], response_token_ids=[2], logprobs=[-1.0], reward=float(run_id))


async def run(workflow: Mine, *, base: int = 0) -> list[Rollout]:
    context = RolloutContext(engine=None, tokenizer=None, repeat_times=4, run_id_base=base)  # type: ignore[arg-type]
    return await workflow.run(TASK, context)


async def test_all_runs_are_done_at_once_and_come_in_order() -> None:
    mine = Mine()
    assert [rollout.reward for rollout in await run(mine, base=8)] == [8.0, 9.0, 10.0, 11.0]
    assert mine.most == 4
    # So what one draws does not hang on how they take turns.
    assert mine.asked == [(8, 0), (9, 0), (10, 0), (11, 0)]


@pytest.mark.parametrize("sequential", [True, False])
async def test_runs_may_be_done_one_after_the_other_and_those_that_succeed_are_kept(sequential: bool) -> None:
    mine = Mine({1, 2})
    mine.sequential = sequential  # type: ignore[misc]
    with pytest.raises(PartialRunsError, match=r"^ValueError: run 1 broke off$") as partial:
        await run(mine)
    assert [rollout.reward for rollout in partial.value.rollouts] == [0.0, 3.0]
    assert mine.most == (1 if sequential else 4)


async def test_a_run_that_takes_too_long_breaks_off_and_costs_no_other() -> None:
    class Hangs(Mine):
        run_timeout_s = 0.05

        async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> Rollout:
            if run_id == 2:
                await asyncio.Event().wait()
            return await super().run_once(task, ctx, run_id)

    with pytest.raises(PartialRunsError, match=r"^TimeoutError: ") as partial:
        await run(Hangs())
    assert [rollout.reward for rollout in partial.value.rollouts] == [0.0, 1.0, 3.0]


async def test_a_class_that_keeps_its_task_has_an_instance_for_each_run_and_is_used_again() -> None:
    made: list[Reusable] = []

    @reused("keeps-its-task")
    class Keeps(Reusable):
        def __init__(self) -> None:
            made.append(self)

        def reset(self, task: Task) -> None:
            self.task, self.steps = task, 0

        async def run(self, ctx: RolloutContext, run_id: int) -> Rollout:
            self.steps += 1
            await asyncio.sleep(0)
            assert self.steps == 1, "another run has this instance"
            if self.task.prompt == "breaks":
                raise ValueError("broke off")
            return Rollout(prompt_token_ids=[1], response_token_ids=[2], logprobs=[-1.0], reward=1.0)

    workflow = REGISTRY.pop("keeps-its-task")
    context = RolloutContext(engine=None, tokenizer=None, repeat_times=3)  # type: ignore[arg-type]
    both = [workflow.run(TASK, context), workflow.run(TASK, context)]
    assert [len(rollouts) for rollouts in await asyncio.gather(*both)] == [3, 3]
    assert len(made) == 6
    await workflow.run(TASK, context)
    assert len(made) == 6
    with pytest.raises(ValueError, match="broke off"):
        await workflow.run(Task(workflow="mine", prompt="breaks"), context)
    await asyncio.gather(workflow.run(TASK, context), workflow.run(TASK, context))
    assert len(made) == 9, "what has broken off is not used again"


async def test_a_run_may_give_several_rollouts_and_each_knows_its_run_and_what_it_took() -> None:
    class Steps(Mine):
        async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> list[Rollout]:  # type: ignore[override]
            return [await super(Steps, self).run_once(task, ctx, run_id) for _ in range(run_id % 2 + 1)]

    rollouts = await run(Steps(), base=8)
    assert [rollout.run_id for rollout in rollouts] == [8, 9, 9, 10, 11, 11]
    times = [rollout.metrics["time/run_execution"] for rollout in rollouts]
    assert times[1] == times[2] >= 0.0


async def test_when_none_succeeds_the_first_error_is_the_groups() -> None:
    class Nothing(Mine):
        async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> list[Rollout]:  # type: ignore[override]
            return []

    with pytest.raises(WorkflowError, match=r"^run 0 of task 't' gave no rollout$"):
        await run(Nothing())
    with pytest.raises(ValueError, match=r"^run 0 broke off$"):
        await run(Mine({0, 1, 2, 3}))


async def test_a_cancelled_group_cancels_its_runs() -> None:
    class Endless(Mine):
        async def run_once(self, task: Task, ctx: RolloutContext, run_id: int) -> Rollout:
            self.together += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.together -= 1
            raise AssertionError

    mine = Endless()
    running = asyncio.create_task(run(mine))
    while mine.together < 4:  # noqa: ASYNC110
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert (running.cancelled(), mine.together) == (True, 0)


def test_what_a_workflow_says_is_kept_until_it_says_otherwise() -> None:
    state = RolloutContext(engine=None, tokenizer=None, repeat_times=1).state  # type: ignore[arg-type]
    state.set({"turn": 1, "tool": "search"})
    assert state.changed
    state.set({"turn": 2})
    for values, error in ({"a": object()}, "is a object, not plain data"), ({"a": "x" * MAX_STATE_BYTES}, "at most"):
        with pytest.raises(ValueError, match=error):
            state.set(values)
    assert state.take() == {"turn": 2, "tool": "search"}
    assert not state.changed
