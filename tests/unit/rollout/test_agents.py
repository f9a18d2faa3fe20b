"""Agents that use the official ``openai`` client, sync, async and streaming, against an endpoint of their own."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from schemas import Task
from schemas.sampling import Sampling
from tests.support.fakes.silent_engine import SilentEngine
from tests.support.fakes.turns import TurnLog
from tests.support.narrowing import some
from trinity_bus import PartialRunsError, Rollout, WorkflowError
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.agents import Endpoint, agent
from trinity_bus.rollout.registry import REGISTRY
from trinity_bus.rollout.scores import judged
from trinity_bus.rollout.workflow import Workflow
from trinity_bus.rollout.workflows import Answered
from trinity_bus.testing import ScriptedEngine, run_workflow

TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
TASK = Task(task_id="t", workflow="w", prompt="1 + 2?")
USER: Any = {"role": "user", "content": "1 + 2?"}


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def workflow(function: Any) -> Workflow:
    agent("w")(function)
    return REGISTRY["w"]


def run(
    function: Any, answers: list[str] | Callable[[str], str], task: Task = TASK
) -> tuple[list[Rollout], ScriptedEngine]:
    engine = ScriptedEngine(answers)
    return asyncio.run(run_workflow(workflow(function), task, engine)), engine


def client(model: Endpoint, **how: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0, **how)


async def ask(endpoint: Endpoint, **how: Any) -> Any:
    """One request of the official client, of ``USER`` unless something else is said."""
    async with client(endpoint) as api:
        return await api.chat.completions.create(**{"model": "policy", "messages": [USER], **how})


def test_a_tool_loop_with_the_official_client_becomes_one_exact_sample() -> None:
    async def solve(task: Task, model: Endpoint) -> float:
        messages: list[Any] = [{"role": "user", "content": task.prompt}]
        async with client(model) as api:
            while True:
                answer = await api.chat.completions.create(model="policy", messages=messages, tools=TOOLS, top_p=0.5)
                message = answer.choices[0].message
                messages.append(message.model_dump())
                if not message.tool_calls:
                    assert answer.choices[0].finish_reason == "stop"
                    return float(message.content == "3")
                assert answer.choices[0].finish_reason == "tool_calls"
                for call in message.tool_calls:
                    asked = json.loads(call.function.arguments)  # type: ignore[union-attr]
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": str(asked["a"] + asked["b"])})

    (rollout,), engine = run(solve, [CALL, "3"])
    assert rollout.reward == 1.0
    assert rollout.metrics["turns"] == 2.0
    first, second = engine.requests
    # What the second request was asked with is what was prompted and drawn at the first, and what is new.
    assert second.prompt == first.prompt + CALL + "\0" + "\ntool: 3\nassistant: "
    tokens = [*rollout.prompt_token_ids, *rollout.response_token_ids]
    assert tokens == [ord(c) for c in second.prompt + "3\0"]
    assert list(rollout.mask or []) == [True] * len(CALL + "\0") + [False] * len("\ntool: 3\nassistant: ") + [True] * 2
    # How it is drawn is the task's to say.
    assert second.sampling.top_p is None


def test_a_function_that_is_not_async_has_a_thread_of_its_own() -> None:
    def solve(task: Task, model: Endpoint) -> tuple[float, dict[str, float]]:
        with OpenAI(base_url=model.base_url, api_key=model.api_key) as api:
            said = api.chat.completions.create(model="policy", messages=[USER]).choices[0].message.content
        return 0.5, {"length": float(len(said or ""))}

    (one, other), _ = run(solve, ["three", "3"], TASK.model_copy(update={"repeat_times": 2}))
    assert {one.metrics["length"], other.metrics["length"]} == {5.0, 1.0}


def test_streams_say_the_same() -> None:
    async def solve(task: Task, model: Endpoint) -> float:
        async with client(model) as api:
            stream = await api.chat.completions.create(
                model="policy", messages=[USER], tools=TOOLS, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
            assert "".join(delta.content or "" for delta in deltas) == "Let me see."
            (call,) = [call for delta in deltas for call in delta.tool_calls or ()]
            assert call.function is not None
            assert (call.index, call.function.name) == (0, "add")
            assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "tool_calls"
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens == len("Let me see." + CALL) + 1
        return 1.0

    run(solve, ["Let me see." + CALL])


def test_what_a_request_may_say() -> None:
    async def solve(task: Task, model: Endpoint) -> float:
        async with client(model) as api:
            answer = await api.chat.completions.create(
                model="", messages=[USER], n=2, stop="!", max_completion_tokens=3, logprobs=True, user="me", seed=1
            )
            assert [choice.message.content for choice in answer.choices] == ["yes", "ye"]
            logprobs = some(answer.choices[0].logprobs)
            assert [(one.token, one.logprob) for one in logprobs.content or ()] == [("y", -1), ("e", -1), ("s", -1)]
            assert [choice.finish_reason for choice in answer.choices] == ["length", "length"]
            assert [one.id async for one in api.models.list()] == ["policy"]
        return 1.0

    (one, other), engine = run(solve, ["yes", "ye!"])
    assert one.run_id == other.run_id == 0
    assert (engine.requests[0].n, engine.requests[0].sampling.max_tokens) == (2, 3)
    assert engine.requests[0].sampling.seed is None


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"tool_choice": "required"}, "not among the tools"),
        ({"response_format": {"type": "grammar"}}, 'response_format {"type": "grammar"} cannot be had'),
        ({"response_format": {"type": "json_object"}, "tools": TOOLS}, "cannot be had together with tools"),
        ({"top_logprobs": 3}, "top_logprobs 3"),
        ({"modality": "x"}, "modality cannot be had"),
        ({"n": 129}, "n is from 1 to 128"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater"),
        ({"messages": []}, "at least one message"),
        ({"messages": ["so"]}, "messages is a list of objects"),
    ],
)
def test_what_cannot_be_had_is_refused_and_the_agents_to_handle(body: dict[str, Any], why: str) -> None:
    async def solve(task: Task, model: Endpoint) -> float:
        with pytest.raises(openai.BadRequestError, match=why):
            await ask(model, extra_body=body)
        await ask(model)
        return 1.0

    run(solve, ["3"])


def test_another_name_is_another_model_whose_answers_are_no_part_of_the_samples() -> None:
    verdict = judged("${response}?", pool="judge")

    async def solve(task: Task, model: Endpoint) -> float:
        said = str((await ask(model)).choices[0].message.content)
        asked: Any = [{"role": "user", "content": f"Is it {said}?"}]
        async with client(model) as api:
            stream = await api.chat.completions.create(model="judge", messages=asked, temperature=0, stream=True)
            deltas = [choice.delta.content or "" async for chunk in stream for choice in chunk.choices]
        assert "".join(deltas) == "Yes."
        with pytest.raises(openai.BadRequestError, match="tools cannot be had of model 'judge'"):
            await ask(model, model="judge", messages=asked, tools=TOOLS)
        with pytest.raises(openai.NotFoundError, match="'gpt-5' is not served here"):
            await ask(model, model="gpt-5", messages=asked)
        return await verdict(Answered(said, ctx=model.ctx))

    judge, engine = ScriptedEngine(["Yes.", "Score: 4"]), ScriptedEngine(["3"])
    # The task's wishes are for the model that is trained.
    task = TASK.model_copy(update={"sampling": Sampling(max_tokens=7, temperature=0.5, stop=["Y"])})
    (rollout,) = asyncio.run(run_workflow(workflow(solve), task, engine, {"judge": judge}))
    assert (rollout.reward, rollout.metrics["turns"]) == (0.4, 1.0)
    assert [request.sampling for request in engine.requests] == [task.sampling]
    assert [request.sampling for request in judge.requests] == [Sampling(temperature=0.0), Sampling()]


def test_an_answer_of_a_shape_that_was_asked_for_is_told_from_those_that_a_trainer_can_repeat() -> None:
    schema = {"type": "object"}

    async def solve(task: Task, model: Endpoint) -> float:
        await ask(model)
        await ask(model, response_format={"type": "json_schema", "json_schema": {"name": "any", "schema": schema}})
        return 1.0

    (free, shaped), engine = run(solve, ["3", "{}"])
    assert free.sampling is not None
    assert shaped.sampling is not None
    assert (free.sampling.altered_by, shaped.sampling.altered_by) == ((), ("structured_outputs",))
    asked = some(engine.requests[1].sampling.structured_outputs)
    assert asked.json_schema == schema


def test_an_engine_that_fails_fails_the_run_though_the_agent_passes_over_it() -> None:
    class BrokenError(TrinityError, RuntimeError):
        pass

    def broken(prompt: str) -> str:
        raise BrokenError("it is gone")

    async def solve(task: Task, model: Endpoint) -> float:
        with pytest.raises(openai.InternalServerError, match="it is gone"):
            await ask(model)
        return 1.0

    with pytest.raises(BrokenError, match="it is gone"):
        run(solve, broken)


def test_what_the_agent_raises_is_the_failure_of_its_run() -> None:
    async def solve(task: Task, model: Endpoint) -> float:
        if (await ask(model)).choices[0].message.content == "bad":
            raise LookupError("no such thing")
        return 1.0

    with pytest.raises(PartialRunsError, match="no such thing") as partial:
        run(solve, ["good", "bad"], TASK.model_copy(update={"repeat_times": 2}))
    assert len(partial.value.rollouts) == 1


async def test_a_client_that_goes_away_takes_its_request_along() -> None:
    engine = SilentEngine()

    async def solve(task: Task, model: Endpoint) -> float:
        request = asyncio.ensure_future(ask(model))
        await engine.asked.wait()
        request.cancel()
        await engine.aborted.wait()
        return 1.0

    async with asyncio.timeout(60):
        with pytest.raises(WorkflowError, match="asked the model nothing"):
            await workflow(solve).run(TASK, engine.context())


async def test_neither_a_wrong_key_nor_a_request_that_is_left_behind_gives_anything_to_train_on() -> None:
    engine, left = SilentEngine(), list[asyncio.Future[Any]]()

    async def solve(task: Task, model: Endpoint) -> float:
        async with AsyncOpenAI(base_url=model.base_url, api_key="wrong", max_retries=0) as api:
            for refused in (api.chat.completions.create(model="policy", messages=[USER]), api.models.list()):
                with pytest.raises(openai.AuthenticationError):
                    await refused
        left.append(asyncio.ensure_future(ask(model)))
        await engine.asked.wait()
        return 1.0

    async with asyncio.timeout(30):
        with pytest.raises(WorkflowError, match="asked the model nothing"):
            await workflow(solve).run(TASK, engine.context())
    await asyncio.wait(left)
    assert left[0].exception() is not None


async def attempt(log: TurnLog, function: Any, answers: list[str]) -> tuple[list[Rollout], ScriptedEngine]:
    engine = ScriptedEngine(answers)
    REGISTRY.pop("w", None)
    try:
        return await workflow(function).run(TASK, log.context(engine)), engine
    except openai.InternalServerError:
        return [], engine


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_agent_that_was_lost_is_told_its_turns_again_and_calls_no_tool_twice(is_async: bool) -> None:
    called: list[int] = []

    def double(value: int) -> int:
        """Twice as much."""
        called.append(value)
        return 2 * value

    async def double_later(value: int) -> int:
        return double(value)

    async def solve(task: Task, model: Endpoint) -> float:
        tool, messages = model.once(double_later), [USER]
        assert tool.__name__ == "double_later"
        for _ in range(3):
            said = (await ask(model, messages=messages)).choices[0].message
            messages += [said.model_dump(), {"role": "user", "content": str(await tool(int(str(said.content))))}]
        return float(str(said.content))

    def solve_in_a_thread(task: Task, model: Endpoint) -> float:
        tool, messages = model.once(double), [USER]
        with OpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as api:
            for _ in range(3):
                said = api.chat.completions.create(model="policy", messages=messages).choices[0].message
                messages += [said.model_dump(), {"role": "user", "content": str(tool(int(str(said.content))))}]
        return float(str(said.content))

    agent_of = solve if is_async else solve_in_a_thread
    log = TurnLog()
    lost, first = await attempt(log, agent_of, ["1", "2"])
    assert (lost, called, len(log.turns)) == ([], [1, 2], 2)
    (rollout,), second = await attempt(log, agent_of, ["3"])
    assert (rollout.reward, called) == (3.0, [1, 2, 3])
    assert [request.prompt for request in second.requests] == [first.requests[2].prompt]
    assert (sum(rollout.mask or []), rollout.metrics["turns"]) == (6, 3.0)


async def test_an_agent_that_asks_once_writes_no_turn() -> None:
    async def solve(task: Task, model: Endpoint) -> float:
        await ask(model)
        return 1.0

    log = TurnLog()
    await attempt(log, solve, ["4"])
    assert log.turns == []
