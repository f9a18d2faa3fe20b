"""Agents with OpenAI's client, for runners."""

from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from schemas import Task
from trinity_bus import Endpoint, agent


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


@agent("takes-notes")
async def take_notes(task: Task, model: Endpoint) -> float:
    """Four turns: the model speaks, and a tool notes it in the file that the prompt names."""
    path = Path(task.prompt or "")

    @model.once
    async def note(line: str) -> int:
        path.write_text(f"{path.read_text() if path.exists() else ''}{line}\n")
        return len(line)

    messages: list[Any] = [{"role": "user", "content": "Go on."}]
    async with AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as client:
        for _ in range(4):
            answer = await client.chat.completions.create(model="policy", messages=messages)
            message = answer.choices[0].message
            told = await note(message.content or "")
            messages += [message.model_dump(exclude_none=True), {"role": "user", "content": str(told)}]
    return 1.0
