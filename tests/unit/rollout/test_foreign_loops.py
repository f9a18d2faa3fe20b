"""Agent loops that somebody else wrote, with a tool, at a run's endpoint and at the gateway.

Each is skipped where its package is not installed: ``pip install pydantic-ai-slim[openai] openai-agents smolagents``.
"""

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

import pytest

from schemas import Task
from tests.support.gateway.rig import KEY, rig
from trinity_bus.chat import Session, renderer_for
from trinity_bus.rollout.agents import Endpoint
from trinity_bus.rollout.workflow import RolloutContext
from trinity_bus.testing import ScriptedEngine

CALL = 'Well: <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
ENDS = '<tool_call>{"name": "final_answer", "arguments": {"answer": "3"}}</tool_call>'

type Loop = Callable[[str, str, Callable[[int, int], int]], Coroutine[Any, Any, str]]


async def pydantic_ai(url: str, key: str, add: Callable[[int, int], int], model: str = "OpenAIChatModel") -> str:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models import openai
    from pydantic_ai.providers.openai import OpenAIProvider

    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        made = getattr(openai, model)("policy", provider=OpenAIProvider(openai_client=client))
        return str((await Agent(made, tools=[add], instructions="Add.").run("1 + 2?")).output)


async def openai_agents(
    url: str, key: str, add: Callable[[int, int], int], model: str = "OpenAIChatCompletionsModel"
) -> str:
    import agents
    from agents import Agent, RunConfig, Runner, function_tool
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        made = getattr(agents, model)(model="policy", openai_client=client)
        agent = Agent(name="adds", instructions="Add.", tools=[function_tool(add)], model=made)
        return str((await Runner.run(agent, "1 + 2?", run_config=RunConfig(tracing_disabled=True))).final_output)


async def smolagents(url: str, key: str, add: Callable[[int, int], int]) -> str:
    from smolagents import OpenAIModel, ToolCallingAgent
    from smolagents import tool as function_as_tool

    # It would insist on a call at every turn (tool_choice="required"), and this engine follows a script.
    model = OpenAIModel("policy", api_base=url, api_key=key, tool_choice="auto")
    agent = ToolCallingAgent(tools=[function_as_tool(add)], model=model, verbosity_level=0)
    with model.client:
        return str(await asyncio.to_thread(agent.run, "1 + 2?"))


def _loop(module: str, loop: Loop, ends: str, rewrites: int, api: str = "chat") -> Any:
    missing = pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"not run: {module} is not installed")
    return pytest.param(loop, ends, rewrites, id=f"{module}-{api}", marks=missing)


LOOPS = [
    _loop("pydantic_ai", pydantic_ai, "It is 3.", 0),
    _loop("agents", openai_agents, "It is 3.", 0),
    # It sends calls and their results back as text.
    _loop("smolagents", smolagents, ENDS, 1),
]
RESPONSES = [
    _loop("pydantic_ai", partial(pydantic_ai, model="OpenAIResponsesModel"), "It is 3.", 0, "responses"),
    _loop("agents", partial(openai_agents, model="OpenAIResponsesModel"), "It is 3.", 0, "responses"),
]


def tool(called: list[int]) -> Callable[[int, int], int]:
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: One.
            b: The other.
        """
        called.append(a + b)
        return a + b

    return add


def drawn(samples: Iterable[Any]) -> list[int]:
    return [t for one in samples for t, own in zip(one.response_token_ids, one.mask, strict=True) if own]


@pytest.mark.parametrize(("loop", "ends", "rewrites"), LOOPS)
async def test_what_a_loop_of_somebody_else_draws_is_one_sample_of_the_tokens_that_were_drawn(
    loop: Loop, ends: str, rewrites: int
) -> None:
    engine, called = ScriptedEngine([CALL, ends]), list[int]()
    ctx = RolloutContext(engine=engine, tokenizer=engine.tokenizer, repeat_times=1)
    session = Session(renderer_for(engine.tokenizer))
    async with Endpoint(ctx, session, Task(workflow="w", prompt="?").sampling) as model:
        said = await loop(model.base_url, model.api_key, tool(called))
    assert (model.failure, called, "3" in said) == (None, [3], True)
    assert drawn(session.samples) == [*map(ord, CALL), 0, *map(ord, ends), 0]
    last = session.samples[-1]
    assert [*last.prompt_token_ids, *last.response_token_ids] == [*map(ord, engine.requests[1].prompt + ends), 0]
    assert (len(session.samples), session.rewrites, session.branches) == (1 + rewrites, rewrites, 0)


@pytest.mark.parametrize(("loop", "ends", "rewrites"), [*LOOPS, *RESPONSES])
async def test_behind_a_gateway_it_is_one_conversation(loop: Loop, ends: str, rewrites: int) -> None:
    async with rig() as here:
        engine, called = here.engines["explorer-0"], list[int]()
        engine.answer = CALL
        add = tool(called)

        def last(a: int, b: int) -> int:
            engine.answer = ends
            return add(a, b)

        last.__name__, last.__doc__ = "add", add.__doc__
        said = await loop(f"{here.url}/sessions/s-1/v1", KEY, last)
        assert (called, "3" in said) == ([3], True)
        here.gateway._sessions.feedback("me", [], 1.0, session="s-1")
        (rollouts,) = [one.rollouts for one in here.gateway._sessions.pending("me")]
    assert drawn(rollouts) == [*map(ord, CALL + ends)]
    assert [rollout.metrics["rewrites"] for rollout in rollouts] == [rewrites] * (1 + rewrites)
