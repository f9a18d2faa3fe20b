"""Workflows, run against an engine that answers from a list."""

import dataclasses
from typing import Any

import pytest

from schemas.experience import Rollout
from schemas.message import FunctionSchema, Message, Tool
from schemas.sampling import Sampling
from schemas.task import Task
from trinity_bus.rollout.registry import REGISTRY, UnknownWorkflow, get_workflow, register
from trinity_bus.rollout.workflow import (
    RolloutContext,
    Workflow,
    WorkflowError,
    merge_sampling,
    prompt_tokens,
    sampling_of_rest,
)
from trinity_bus.testing import END, LOGPROB, CharacterTokenizer, Request, ScriptedEngine


def context(texts: Any, **changes: Any) -> RolloutContext:
    """What a workflow is given, with an engine that says these, one for each run."""
    engine = ScriptedEngine(texts, version=7)
    own = {"sampling": Sampling(temperature=1.0, max_tokens=16), **changes}
    return RolloutContext(
        engine=engine, tokenizer=engine.tokenizer, repeat_times=own.pop("repeat_times", None) or len(texts), **own
    )


def requests(ctx: RolloutContext) -> list[Request]:
    assert isinstance(ctx.engine, ScriptedEngine)
    return ctx.engine.requests


async def run(name: str, task: Task, ctx: RolloutContext) -> list[Rollout]:
    return await get_workflow(name).run(task, ctx)


async def test_math_asks_once_for_all_runs_and_rewards_each() -> None:
    ctx = context(["it is 4", "it is 5"])
    task = Task(task_id="t", workflow="math", prompt="2 + 2 ?", answer="4", sampling=Sampling(temperature=0.5))
    first, second = await run("math", task, ctx)
    assert requests(ctx) == [Request("2 + 2 ?", Sampling(temperature=0.5, max_tokens=16), 2)]
    assert (first.reward, second.reward) == (1.0, 0.0)
    assert first.prompt_token_ids == ctx.tokenizer.encode("2 + 2 ?")
    # The engine's own tokens and logprobs, untouched.
    assert (first.response_token_ids, first.logprobs) == ([*map(ord, "it is 4"), END], [LOGPROB] * 8)
    assert (first.mask, first.versions) == (None, [(0, 7)])
    assert first.metrics == {"reward": 1.0, "exact": 1.0, "response_tokens": 8.0, "truncated": 0.0}


@pytest.mark.parametrize(
    ("runs", "base", "batch_type", "asked"),
    [
        (3, 0, "train", [(0.0, 1), (0.5, 2)]),
        (1, 0, "train", [(0.0, 1)]),
        (3, 3, "train", [(0.5, 3)]),
        (3, 0, "eval", [(0.5, 3)]),
    ],
)
async def test_the_first_run_of_a_task_that_wants_a_baseline_is_greedy(
    runs: int, base: int, batch_type: Any, asked: list[tuple[float, int]]
) -> None:
    ctx = context(["4"] * runs, run_id_base=base, batch_type=batch_type)
    wishes = Sampling(temperature=0.5)
    task = Task(
        task_id="t", workflow="math", prompt="2 + 2 ?", answer="4", sampling=wishes, data={"greedy_baseline": True}
    )
    rollouts = await run("math", task, ctx)
    assert [(one.sampling.temperature, one.n) for one in requests(ctx)] == asked
    found = [one.sampling.temperature for one in rollouts if one.sampling is not None]
    assert found == [temperature for temperature, n in asked for _ in range(n)]
    assert sampling_of_rest(rollouts, ctx.asked) is None


async def test_sequence_gives_partial_credit() -> None:
    task = Task(task_id="t", workflow="sequence", prompt="copy 3 1 =", answer="3 1")
    rollouts = await run("sequence", task, context(["3 1", "3 3", "1 3 1 1"]))
    assert [rollout.reward for rollout in rollouts] == [1.0, pytest.approx(2 / 3), 0.0]
    cut = await run("sequence", task, context(["3 1"], sampling=Sampling(max_tokens=3)))
    assert cut[0].reward == pytest.approx(2 / 3)
    assert cut[0].metrics["truncated"] == 1.0


class Short(ScriptedEngine):
    """Gives one response, whatever it is asked for."""

    async def generate(self, prompt_token_ids: Any, sampling: Any, n: int, traceparent: Any) -> Any:
        del n
        return await ScriptedEngine.generate(self, prompt_token_ids, sampling, 1, traceparent)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "task 't' has no answer, which workflow 'math' needs"),
        ("4", "asked the engine for 3 responses and got 1"),
    ],
)
async def test_what_cannot_be_answered_is_a_failure_not_a_zero(answer: str | None, why: str) -> None:
    ctx = dataclasses.replace(context(["4"] * 3), engine=Short(["4"]))
    with pytest.raises(WorkflowError, match=why):
        await run("math", Task(task_id="t", workflow="math", prompt="2 + 2", answer=answer), ctx)


def test_messages_go_through_the_chat_template() -> None:
    task = Task(task_id="t", workflow="math", messages=[Message(role="user", content="2 + 2 ?")], answer="4")
    tokenizer = CharacterTokenizer()
    assert tokenizer.decode(prompt_tokens(task, tokenizer)) == "user: 2 + 2 ?\nassistant: "
    with_tools = task.model_copy(update={"tools": [Tool(function=FunctionSchema(name="add"))]})
    assert tokenizer.decode(prompt_tokens(with_tools, tokenizer)).startswith("tools: ['add']\nuser: 2 + 2 ?")
    tokenizer.chat_template = None
    with pytest.raises(WorkflowError, match="has no chat template; send a prompt"):
        prompt_tokens(task, tokenizer)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"prompt": "a", "messages": [Message(role="user", content="b")]}, "exactly one of prompt and messages"),
        ({"data": {"a": 1}}, "exactly one of prompt and messages"),
        ({"prompt": ""}, "without a single token"),
    ],
)
def test_one_prompt_is_needed_and_no_empty_one(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(WorkflowError, match=why):
        prompt_tokens(Task(task_id="t", workflow="math", **fields), CharacterTokenizer())


def test_wishes_overlay_defaults_field_by_field() -> None:
    defaults = Sampling(temperature=1.0, max_tokens=16, top_p=0.9)
    assert merge_sampling(defaults, None) is defaults
    assert merge_sampling(defaults, Sampling(temperature=0.0, seed=1)) == Sampling(
        temperature=0.0, max_tokens=16, top_p=0.9, seed=1
    )


def test_a_name_belongs_to_one_workflow_and_an_unknown_one_is_told_the_known_ones() -> None:
    for name, workflow in REGISTRY.items():
        assert isinstance(workflow, Workflow)
        assert workflow.name == name
    with pytest.raises(UnknownWorkflow, match=r"unknown workflow 'os\.system'; known: .*\bmath, .*\bsequence\b"):
        get_workflow("os.system")
    with pytest.raises(ValueError, match="workflow name 'math' is taken by MathWorkflow"):

        @register("math")
        class Other:
            name: str

            async def run(self, task: Task, ctx: RolloutContext) -> list[Rollout]:
                raise NotImplementedError


async def asked_seeds(ctx: RolloutContext, own: Sampling | None = None) -> list[int | None]:
    """Of two requests of one response each."""
    for _ in range(2):
        await ctx.generate([0], own)
    return [one.sampling.seed for one in requests(ctx)[-2:]]


async def test_where_the_explorer_has_a_seed_each_request_follows_from_it_the_task_and_the_run() -> None:
    def of(task_id: str, base: int = 0, seed: int | None = 7) -> RolloutContext:
        changes = {"repeat_times": 1, "task_id": task_id, "run_id_base": base, "sampling": Sampling(seed=seed)}
        return context(iter("4" * 4), **changes)

    seeds = await asked_seeds(of("one"))
    assert seeds == await asked_seeds(of("one"))
    assert [None if seed is None else seed + 8 for seed in seeds] == await asked_seeds(of("one", base=8))
    others = [*seeds, *await asked_seeds(of("two")), *await asked_seeds(of("one", seed=8))]
    assert len(set(others)) == 6
    assert all(seed is not None and 0 <= seed < 2**62 for seed in others)
    assert await asked_seeds(of("one", seed=None)) == [None, None]
    # A task's own counts more, and no two runs draw the same.
    assert await asked_seeds(of("one", base=8), Sampling(seed=3)) == [11, 11]
