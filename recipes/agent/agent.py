"""An agent of one's own: of the mesh it knows the URL of a gateway and a key, ``GATEWAY_URL`` and ``GATEWAY_KEY``.

::

    question --session of a run--> the model answers, looks at its answer once more --reward--> /feedback
                                                 all runs of the question --> /commit --> a group to train on

``python -m recipes.agent.agent`` goes on until it is stopped. A request that fails ends its run, which has no reward
then; a commit that is refused is told, and the agent goes on with the next question.
"""

import asyncio
import contextlib
import itertools
import os
import sys
from pathlib import Path
from typing import Any, Final

import aiohttp
import openai

from trinity_bus import Task
from trinity_bus.rollout.equivalence import CHECKER
from trinity_bus.rollout.rewards import math_reward
from workers.taskset.dataset import load

URL, KEY = "GATEWAY_URL", "GATEWAY_KEY"
RUNS: Final = 8
"""Of each question: what GRPO compares."""
QUESTIONS: Final = 8
"""At once."""
AGAIN: Final[Any] = {"role": "user", "content": "Is that right? Put the final number after ####."}


async def solve(client: openai.AsyncOpenAI, task: Task) -> float:
    """Have the model answer, and look at its answer once more; return what that was worth."""
    messages: list[Any] = [one.model_dump(exclude_none=True) for one in task.messages or ()]
    said = ""
    for _ in range(2):
        answer = await client.chat.completions.create(model="policy", messages=messages)
        said = answer.choices[0].message.content or ""
        messages += [answer.choices[0].message.model_dump(exclude_none=True), AGAIN]
    return await math_reward(said, task.answer or "", CHECKER.same)


async def run(http: aiohttp.ClientSession, gateway: str, key: str, task: Task, number: int) -> None:
    """Do one run of a question, and say what it was worth."""
    session = f"{task.task_id.replace('/', ':')}:{number}"
    async with openai.AsyncOpenAI(base_url=f"{gateway}/sessions/{session}/v1", api_key=key) as client:
        reward = await solve(client, task)
    told = {"session": session, "reward": reward, "task_id": task.task_id, "run_id": number}
    async with http.post(f"{gateway}/feedback", json=told) as response:
        response.raise_for_status()


async def question(http: aiohttp.ClientSession, gateway: str, key: str, task: Task, runs: int) -> None:
    """Do all runs of a question, and contribute them."""
    ended = await asyncio.gather(*(run(http, gateway, key, task, n) for n in range(runs)), return_exceptions=True)
    for error in (one for one in ended if isinstance(one, BaseException)):
        sys.stderr.write(f"a run of {task.task_id} failed: {type(error).__name__}: {error}\n")
    async with http.post(f"{gateway}/commit", json={"task_ids": [task.task_id]}) as response:
        sys.stdout.write(f"{task.task_id}: {response.status} {await response.text()}\n")


async def ready(http: aiohttp.ClientSession, gateway: str) -> None:
    """Return when the gateway has an explorer to ask."""
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            async with http.get(f"{gateway}/health") as response:
                if response.status == 200:
                    return
        await asyncio.sleep(1)


async def main(tasks: Path, runs: int) -> None:
    """Do question after question."""
    gateway, key = os.environ[URL].rstrip("/"), os.environ[KEY]
    train = load(tasks, taskset="agent").train
    if train is None:
        raise SystemExit(f"{tasks} has no [[train]]")
    places = itertools.count()
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers) as http, asyncio.TaskGroup() as group:
        await ready(http, gateway)

        async def work() -> None:
            for place in places:
                await question(http, gateway, key, train.task("agent", place), runs)

        for _ in range(QUESTIONS):
            group.create_task(work())


if __name__ == "__main__":
    asyncio.run(main(Path(os.environ.get("TASKS", "recipes/agent/tasks.toml")), int(os.environ.get("RUNS", RUNS))))
