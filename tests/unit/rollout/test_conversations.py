"""A model that speaks, calls Python functions, and is rewarded for each turn and for all of it."""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
import pytest

from schemas.task import Task
from trinity_bus.rollout.conversations import Conversation, ToolWorkflow
from trinity_bus.rollout.tools import PythonTool, Toolbox, ToolError, ToolTimeoutError
from trinity_bus.testing import ScriptedEngine, run_workflow

CALLED: list[str] = []


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    This is not told.
    """
    CALLED.append(f"{a}+{b}")
    return a + b


async def look(query: str) -> dict[str, str]:
    if query == "forbidden":
        raise ToolError("not here")
    return {"found": query}


async def hang() -> None:
    await asyncio.Event().wait()


def fail() -> None:
    raise KeyError("broken")


class Sums(ToolWorkflow):
    """Rewards an answer that is the task's, where each turn was written as one of a model's is."""

    name = "sums"
    tools: ClassVar = (add, look, hang, fail)
    max_turns: ClassVar = 4
    tool_timeout_s: ClassVar = 0.05

    async def reward(self, task: Task, conversation: Conversation) -> float:
        assert all(text and "\0" not in text for text in conversation.texts)
        return float(conversation.answer.strip() == task.answer)


class Stepwise(Sums):
    """And half for each turn with a call."""

    async def turn_reward(self, task: Task, conversation: Conversation) -> float | None:
        return 0.5 if conversation.messages[-1]["role"] == "tool" else None


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def task(**changes: Any) -> Task:
    return Task(workflow="sums", prompt="3 + 4?", answer="7", **changes)


async def run(answers: Iterable[str] | Callable[[str], str], workflow: ToolWorkflow | None = None) -> Any:
    engine = ScriptedEngine(answers)
    (rollout,) = await run_workflow(workflow or Sums(), task(), engine)
    return rollout, engine


async def test_a_function_is_called_and_the_model_is_told_what_it_returned() -> None:
    CALLED.clear()
    rollout, engine = await run([call("add", a=3, b=4), "7"])
    assert CALLED == ["3+4"]
    assert "tools: ['add', 'look', 'hang', 'fail']" in engine.requests[0].prompt
    assert "tool: 7\n" in engine.requests[1].prompt
    assert (rollout.reward, rollout.metrics["turns"], rollout.metrics["tool_calls"]) == (1.0, 2.0, 1.0)
    assert rollout.metrics["tool_errors"] == 0.0
    assert rollout.turn_rewards is None
    drawn = sum(np.asarray(rollout.mask))
    assert drawn == len(call("add", a=3, b=4)) + len("7") + 2, "what the tool said is not the model's own"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (call("subtract", a=1), "there is no tool 'subtract'; there are add, fail, hang, look"),
        (call("add", a="three"), "add does not take these arguments: a: Input should be a valid integer"),
        (call("add", a=1, c=2), "add does not take these arguments: c: Unexpected keyword argument"),
        (call("look", query="forbidden"), "error: not here"),
        ("<tool_call>{nonsense</tool_call>", "tool: "),
    ],
)
async def test_a_call_that_cannot_be_made_is_told_to_the_model_and_counted(written: str, told: str) -> None:
    rollout, engine = await run([written, "7"])
    assert told in engine.requests[1].prompt
    assert (rollout.reward, rollout.metrics["tool_errors"]) == (1.0, 1.0)


class Judged(Sums):
    """Its judge fails, or hangs."""

    run_timeout_s: ClassVar = 0.1

    async def reward(self, task: Task, conversation: Conversation) -> float:
        if conversation.answer == "hang":
            await asyncio.Event().wait()
        raise LookupError("the judge is gone")


@pytest.mark.parametrize(
    ("said", "workflow", "error", "why"),
    [
        ([call("hang"), "7"], Sums(), ToolTimeoutError, r"tool 'hang' gave nothing within 0\.05 s"),
        ([call("fail"), "7"], Sums(), KeyError, "broken"),
        (["7"], Judged(), LookupError, "the judge is gone"),
        (["hang"], Judged(), TimeoutError, "^"),
    ],
)
async def test_a_tool_or_a_reward_that_hangs_or_breaks_fails_its_run(
    said: list[str], workflow: Sums, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        await run(said, workflow)


async def test_each_turn_may_be_rewarded_by_itself_and_one_that_never_ends_is_cut() -> None:
    rollout, engine = await run(lambda _: call("add", a=1))
    assert len(engine.requests) == 4
    assert (rollout.reward, rollout.metrics["truncated"]) == (0.0, 1.0)
    rollout, _ = await run([call("add", a=3, b=4), "7"], Stepwise())
    assert list(rollout.turn_starts) == [0, len(rollout.response_token_ids) - 2]
    np.testing.assert_array_equal(rollout.turn_rewards, [0.5, np.nan])


def test_what_a_model_is_told_of_a_function_is_its_signature() -> None:
    schema = PythonTool(add).schema.model_dump(exclude_none=True)["function"]
    assert (schema["name"], schema["description"]) == ("add", "Add two numbers.")
    assert schema["parameters"]["required"] == ["a"]
    assert schema["parameters"]["properties"]["b"]["type"] == "integer"
    assert [tool["function"]["name"] for tool in Toolbox([PythonTool(add), PythonTool(look)]).schemas] == [
        "add",
        "look",
    ]


def test_what_cannot_be_told_is_no_tool() -> None:
    def untyped(a):  # type: ignore[no-untyped-def]
        return a

    def any_number(*a: int) -> None:
        del a

    for wrong in (untyped, any_number):
        with pytest.raises(TypeError, match="parameter 'a'"):
            PythonTool(wrong)
    with pytest.raises(ValueError, match="the same name: add, add"):
        Toolbox([PythonTool(add), PythonTool(add)])
