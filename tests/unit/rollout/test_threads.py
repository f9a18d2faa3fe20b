"""Workflows that block: each run in a thread, whose questions are asked on the event loop."""

import asyncio
import concurrent.futures
import threading

import pytest

from schemas import Task
from schemas.experience import Rollout
from tests.support.fakes.silent_engine import SilentEngine
from tests.support.mesh.waiting import until
from trinity_bus.rollout.registry import REGISTRY
from trinity_bus.rollout.single_runs import Reusable, reused
from trinity_bus.rollout.threads import BlockingContext, given_up
from trinity_bus.testing import ScriptedEngine, run_workflow

TASK = Task(workflow="blocks", prompt="1 + 1?", repeat_times=3)


async def test_runs_that_block_have_threads_and_instances_of_their_own() -> None:
    met = threading.Barrier(3)

    @reused("blocks")
    class Blocks(Reusable):
        def reset(self, task: Task) -> None:
            self.task = task

        def run(self, ctx: BlockingContext, run_id: int) -> Rollout:
            # Only where all three are running at once does anybody come past this.
            met.wait(150)
            ctx.set_state(at=run_id)
            prompt = ctx.tokenizer.encode(self.task.prompt or "")
            (said,) = ctx.generate(prompt)
            assert ctx.call("double", lambda number: 2 * number, 21) == 42
            ctx.end_turn()
            return Rollout(
                prompt_token_ids=prompt, response_token_ids=said.token_ids, logprobs=said.logprobs, reward=run_id
            )

    rollouts = await run_workflow(REGISTRY.pop("blocks"), TASK, ScriptedEngine(["a", "b", "c"]))
    assert [rollout.reward for rollout in rollouts] == [0, 1, 2]
    assert given_up() == 0


async def test_a_run_that_blocks_asks_other_models() -> None:
    @reused("blocks")
    class Blocks(Reusable):
        def reset(self, task: Task) -> None:
            pass

        def run(self, ctx: BlockingContext, run_id: int) -> Rollout:
            (said,) = ctx.generate([1])
            (other,) = ctx.generate([1], pool="judge")
            assert len(other.token_ids) == len("other") + 1
            teacher = ctx.score([1], said.token_ids, pool="judge")
            return Rollout(
                prompt_token_ids=[1],
                response_token_ids=said.token_ids,
                logprobs=said.logprobs,
                teacher_logprobs=teacher,
                reward=float(ctx.chat([{"role": "user", "content": "Good?"}], pool="judge")),
                metrics={"runs": ctx.repeat_times, "named": float(ctx.task_id == "t")},
            )

    task = TASK.model_copy(update={"repeat_times": 1, "task_id": "t"})
    judge = ScriptedEngine(["other", "0.5"])
    (rollout,) = await run_workflow(REGISTRY.pop("blocks"), task, ScriptedEngine(["a"]), {"judge": judge})
    assert (rollout.reward, rollout.metrics["runs"], rollout.metrics["named"]) == (0.5, 1, 1)
    assert rollout.teacher_logprobs is not None


async def test_what_a_run_waits_for_is_cancelled_with_it_and_it_is_answered_nothing_more() -> None:
    engine, ended = SilentEngine(), threading.Event()
    errors: list[BaseException] = []

    @reused("blocks")
    class Blocks(Reusable):
        def reset(self, task: Task) -> None:
            pass

        def run(self, ctx: BlockingContext, run_id: int) -> Rollout:
            for _ in range(2):
                try:
                    ctx.generate([1])
                except concurrent.futures.CancelledError as error:
                    errors.append(error)
            ended.set()
            raise errors[0]

    running = asyncio.create_task(REGISTRY.pop("blocks").run(TASK, engine.context()))
    await engine.asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(ended.is_set)
    assert len(errors) == 2
    await until(lambda: given_up() == 0)
