"""An agent with OpenAI's client, for runners, and the character tokenizer of FAKE engines."""

from typing import Any

from openai import AsyncOpenAI

from schemas import Task
from trinity_bus import Endpoint, agent
from trinity_bus.testing import CharacterTokenizer


def load(model_path: str) -> CharacterTokenizer:
    """What a fork server calls."""
    return CharacterTokenizer()


@agent("asks-twice")
async def ask_twice(task: Task, model: Endpoint) -> float:
    """Asks, and asks whether that is so."""
    messages: list[Any] = [{"role": "user", "content": task.prompt}]
    async with AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as client:
        for question in ("Sure?", None):
            answer = await client.chat.completions.create(model="policy", messages=messages)
            message = answer.choices[0].message
            messages += [message.model_dump(exclude_none=True), {"role": "user", "content": question}]
    return float(message.content == task.answer)
