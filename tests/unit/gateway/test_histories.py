"""Random histories over HTTP, with OpenAI's client: what is contributed is what was drawn, after what it was drawn.

``tests/unit/chat/test_histories.py`` has a thousand, of every model family, without the way there and back.
"""

import copy
import random
from typing import Any

import pytest

from tests.support.gateway.rig import ADD, Rig, rig

WORDS = ("The", "answer", " is ", "42", "\n\n", "漢字", "{}", "<b>", "é", "   ")
BLOCK = 12


class Agent:
    """Says random things, streams at times, and goes back, changes and repeats what was said."""

    def __init__(self, here: Rig, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 (histories, no secrets)
        self.session = f"s-{seed}"
        self.here = here
        self.sent: list[tuple[list[int], list[int]]] = []
        """Prompts, and what was drawn after each."""
        self.histories: list[list[Any]] = [[{"role": "user", "content": self.words()}]]

    def words(self) -> str:
        return "".join(self.chance.choices(WORDS, k=self.chance.randint(1, 6)))

    def drawn(self) -> str:
        """What the engine draws; it begins as no prompt ends, because a FAKE engine goes on with what it has begun."""
        kind = self.chance.random()
        if kind < 0.3:
            return f'A{self.words()}<tool_call>{{"name": "add", "arguments": {{"a": 1}}}}</tool_call>'
        return f"<think>{self.words()}</think>{self.words()}" if kind < 0.5 else f"A{self.words()}"

    async def step(self) -> None:
        history, streams = self.chance.choice(self.histories[-3:]), self.chance.random() < 0.4
        (engine,) = self.here.engines.values()
        engine.answer = self.drawn()
        async with self.here.client(session=self.session) as client:
            asked: Any = {"model": "policy", "messages": history, "tools": ADD}
            if streams:
                message = await streamed(client, asked)
            else:
                answer = await client.chat.completions.create(**asked)
                message = answer.choices[0].message.model_dump(exclude_none=True)
        self.sent.append((engine.prompts[-1], [ord(character) for character in engine.answer]))
        self.histories.append(self.next(history, message))

    def next(self, history: list[Any], message: dict[str, Any]) -> list[Any]:
        calls = message.get("tool_calls", ())
        told = [{"role": "tool", "tool_call_id": call["id"], "content": self.words()} for call in calls]
        more = [*history, message, *(told or [{"role": "user", "content": self.words()}])]
        kind = self.chance.random()
        if kind < 0.1:
            changed = copy.deepcopy(more)
            changed[0]["content"] += " indeed"
            return changed
        return history if kind < 0.2 else more


async def streamed(client: Any, asked: Any) -> dict[str, Any]:
    """The message that a stream amounts to."""
    text, calls = "", list[Any]()
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            calls += [call.model_dump(exclude_none=True) for call in choice.delta.tool_calls or ()]
    for call in calls:
        call.pop("index")
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


@pytest.mark.parametrize("block", range(3))
async def test_what_is_contributed_is_what_was_drawn(block: int) -> None:
    # Its explorer is heard of once.
    async with rig(explorer_silence_s=600) as here:
        for seed in range(block * BLOCK, (block + 1) * BLOCK):
            agent = Agent(here, seed)
            for _ in range(agent.chance.randint(2, 7)):
                await agent.step()
            assert (await here.post("/feedback", session=agent.session, reward=1, task_id=agent.session))[0] == 200
            (task,) = here.gateway._sessions.pending("me", [agent.session])
            trained = []
            for sample in task.rollouts:
                tokens = [*sample.prompt_token_ids, *sample.response_token_ids]
                assert isinstance(sample.mask, list)
                mask = [False] * len(sample.prompt_token_ids) + sample.mask
                begins = [len(sample.prompt_token_ids) + start for start in sample.turn_starts or ()]
                for start, end in zip(begins, [*begins[1:], len(tokens)], strict=True):
                    length = sum(mask[start:end])
                    assert all(mask[start : start + length]), seed
                    trained.append((tokens[:start], tokens[start : start + length]))
            assert sorted(trained) == sorted(agent.sent), seed
