"""Agents with OpenAI's client; gateways, vLLM, coordinator and Kafka as processes: what was drawn is contributed."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest

from benchmarks._tiny_model import make_tiny_qwen3
from schemas import ExperienceGroup, Turn
from schemas.topics import EXPERIENCES, TURNS
from schemas.turn import DrawnResponse
from tests.support.fakes.weights_trainer import WeightsTrainer
from tests.support.mesh.forks import forked
from tests.support.mesh.mesh import PROGRAM, Mesh, environment
from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.processes import log_shown_on_failure
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import until
from tests.support.reference import mismatch
from trinity_bus.bus import Bus, Producer
from trinity_bus.chat.wire import logprobs_of, tokens_of
from trinity_bus.config import KafkaSettings
from trinity_bus.runtime.process import Process, tail

pytestmark = pytest.mark.e2e

_READY = re.compile("is ready at|ready: ")
"""What a gateway says, and what an explorer does."""
KEY = "a-key-of-the-client"
HEADERS = {"Authorization": f"Bearer {KEY}"}
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
ASKED: list[Any] = [{"role": "user", "content": "t7 t8 t9"}]
AGENTS = 4
"""The last one does not stream."""
FIRST = 3
"""The first token that is a word."""
LONG = 100
"""Tokens of an answer at most: new weights come amid it."""
SEVERAL = 3
"""Answers of several versions that are computed anew."""
TOLERANCE = 1e-3


class Stack:
    """A mesh, and what is before it: two gateways, each on a port of its own."""

    def __init__(self, mesh: Mesh, model: Path) -> None:
        self.mesh = mesh
        self.ports = quiet_ports(2)
        settings = {
            "mesh__model_path": model,
            "mesh__dtype": "float32",
            "mesh__max_model_len": 512,
            "mesh__max_tokens": 16,
            "explorer__http_port": 0,
            "explorer__http_key": "what-gateways-show",
            "explorer__slots": 4,
            "gateway__api_keys": f"agent:{KEY}",
        }
        self._environment = environment(mesh.kafka, **settings) | {"OMP_NUM_THREADS": "1"}

    @contextlib.asynccontextmanager
    async def services(self) -> AsyncIterator[dict[str, Process]]:
        """Two explorers and two gateways by name, which have started side by side."""
        environments = {f"explorer-{i}": {"TRINITY_BUS_EXPLORER__NAME": f"explorer-{i}"} for i in range(2)} | {
            f"gateway-{i}": {"TRINITY_BUS_GATEWAY__NAME": f"gateway-{i}", "TRINITY_BUS_GATEWAY__PORT": str(port)}
            for i, port in enumerate(self.ports)
        }
        with contextlib.ExitStack() as stack:
            children: dict[str, Process] = {}
            for name, own in environments.items():
                log = self.mesh.folder / f"{name}.log"
                service = name.partition("-")[0]
                child = forked(
                    *(PROGRAM, "run", service),
                    name=name,
                    env={**self._environment, **own},
                    output=log,
                    kind="vllm" if service == "explorer" else "services",
                )
                children[name] = stack.enter_context(child)
                stack.enter_context(log_shown_on_failure(child, log))
            for name, child in children.items():
                log = self.mesh.folder / f"{name}.log"
                await until(
                    lambda log=log, child=child: bool(_READY.search(tail(log, 200))) or child.poll() is not None,  # type: ignore[misc]
                    200,
                )
                assert child.poll() is None
            yield children

    async def serving(self, gateway: int) -> dict[str, int]:
        """The versions of the explorers that a gateway knows."""
        url = f"http://127.0.0.1:{self.ports[gateway]}/health"
        async with aiohttp.ClientSession() as http, http.get(url) as response:
            versions: dict[str, int] = (await response.json())["explorers"]
            return versions

    async def until_all_serve(self, versions: dict[str, int]) -> None:
        async with asyncio.timeout(100):
            while [await self.serving(gateway) for gateway in range(2)] != [versions] * 2:  # noqa: ASYNC110 (of others)
                await asyncio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def client(self, session: str | None, gateway: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
        path = "" if session is None else f"/sessions/{session}"
        url = f"http://127.0.0.1:{self.ports[gateway]}{path}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
            yield client

    async def post(self, path: str, body: dict[str, Any], gateway: int = 0) -> tuple[int, dict[str, Any]]:
        async with (
            aiohttp.ClientSession(headers=HEADERS) as http,
            http.post(f"http://127.0.0.1:{self.ports[gateway]}{path}", json=body) as response,
        ):
            return response.status, await response.json()


@pytest.mark.timeout(600)
async def test_what_agents_draw_becomes_experiences_whatever_rolls_and_dies(
    kafka: KafkaSettings, tmp_path: Path
) -> None:
    models = {version: make_tiny_qwen3(tmp_path / f"model-{version}", seed=version) for version in range(4)}
    (models[0] / "chat_template.jinja").write_text(TEMPLATE)
    stack = Stack(Mesh(kafka, tmp_path), models[0])
    async with stack.mesh.connected() as (bus, producer):
        with stack.mesh.coordinator(max_staleness=100):
            async with WeightsTrainer(bus, models).alive() as trainer, stack.services() as children:
                await stack.until_all_serve({"explorer-0": 0, "explorer-1": 0})
                said = await converse(stack)
                await contribute(stack, bus, said)
                await weights_roll_and_an_explorer_dies(stack, bus, trainer, producer, children["explorer-1"])
                await a_gateway_dies(stack, bus, children["gateway-0"])


async def converse(stack: Stack) -> list[str]:
    """Two turns, the second streamed; what was said."""
    async with stack.client("s-1") as client:
        answer = await client.chat.completions.create(model="policy", messages=ASKED, logprobs=True)
        first = answer.choices[0].message
        messages = [*ASKED, first.model_dump(exclude_none=True), {"role": "user", "content": "t5"}]
        second = await streamed(client, messages)
    return [first.content or "", second]


async def streamed(client: openai.AsyncOpenAI, messages: list[Any], **how: Any) -> str:
    """What is said in a stream that comes to its end."""
    text, ended = "", None
    async for chunk in await client.chat.completions.create(model="policy", messages=messages, stream=True, **how):
        text += chunk.choices[0].delta.content or ""
        ended = chunk.choices[0].finish_reason
    assert ended in ("stop", "length")
    return text


async def contribute(stack: Stack, bus: Bus, said: list[str]) -> None:
    """Feedback, once; then the coordinator accepts it, once, and the tokens are those that were drawn."""
    status, unknown = await stack.post("/feedback", {"reward": 1.0, "msg_ids": ["never-answered"]})
    assert (status, unknown["error"]["type"]) == (404, "not_found_error")
    assert await stack.post("/feedback", {"reward": 0.5, "session": "s-1", "task_id": "task-1"}) == (
        200,
        {"status": "success", "counted": 1},
    )
    assert (await stack.post("/feedback", {"reward": 0.5, "session": "s-1"}))[1]["counted"] == 0
    assert await stack.post("/commit", {}) == (200, {"status": "success", "contributed": {"task-1": 1}, "refused": {}})
    async with bus.reader(EXPERIENCES, start="beginning") as reader:
        (group,) = [record_of(received) async for received in reader.replay()]
    assert isinstance(group, ExperienceGroup)
    (sample,) = group.samples()
    assert (sample.reward, sample.version_min, sample.version_max) == (0.5, 0, 0)
    assert sample.tokens[: sample.prompt_length].tolist() == [7, 8, 9]
    assert sample.turn_starts is not None
    drawn = sample.tokens[sample.prompt_length :][sample.mask].tolist()
    answers = [one for turn in await turns_of(bus, "agent/s-1", 2) for one in turn.answers[0].responses or ()]
    assert drawn == [token for one in answers for token in tokens_of(one.token_ids)]
    words = [word for word in " ".join(said).split() if word.startswith("t")]
    assert words == [f"t{token}" for token in drawn if token >= FIRST]
    assert (sample.logprobs[sample.mask] < 0).all()
    async with stack.client("s-2") as client:
        await client.chat.completions.create(model="policy", messages=ASKED)
    await stack.post("/feedback", {"reward": 1, "session": "s-2", "task_id": "task-1"})
    status, refused = await stack.post("/commit", {})
    assert status == 409
    assert refused["refused"]["task-1"].startswith("known_task")


async def turns_of(bus: Bus, task_id: str, count: int) -> list[Turn]:
    """The turns of a session, once so many are on the log."""
    turns: list[Turn] = []
    async with asyncio.timeout(60), bus.reader(TURNS, start="beginning") as reader:
        while len(turns) < count:
            turns += [turn for received in await reader.batch(0.1) if (turn := record_of(received)).task_id == task_id]
    return sorted(turns, key=lambda turn: turn.number)


class Agents:
    """Clients that ask again and again, at either gateway, until they are told to stop."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.said: dict[str, list[str]] = {f"agent-{i}": [] for i in range(AGENTS)}
        """In each session."""
        self._stopped = False

    async def ask(self, number: int) -> None:
        """What fails is raised: a refused request, a stream that breaks off."""
        session = f"agent-{number}"
        async with self._stack.client(session, gateway=number % 2) as client:
            while not self._stopped:
                asked = [{"role": "user", "content": f"t{FIRST + number} t{FIRST + len(self.said[session])}"}]
                if number < AGENTS - 1:
                    text = await streamed(client, asked, max_tokens=LONG)
                else:
                    answer = await client.chat.completions.create(model="policy", messages=asked, max_tokens=LONG)  # type: ignore[arg-type]
                    text = answer.choices[0].message.content or ""
                self.said[session].append(text)

    async def have_another_answer(self) -> None:
        before = {session: len(said) for session, said in self.said.items()}
        await until(lambda: all(len(said) > before[session] for session, said in self.said.items()), 100)

    def stop(self) -> None:
        self._stopped = True


async def weights_roll_and_an_explorer_dies(
    stack: Stack, bus: Bus, trainer: WeightsTrainer, producer: Producer, explorer: Process
) -> None:
    """No request is refused, no stream breaks off, and each token has the version that drew it."""
    agents = Agents(stack)
    async with asyncio.TaskGroup() as asking:
        for number in range(AGENTS):
            asking.create_task(agents.ask(number))
        for version in range(1, 4):
            await agents.have_another_answer()
            await trainer.publish(producer, version)
            await stack.until_all_serve({"explorer-0": version, "explorer-1": version})
        await agents.have_another_answer()
        os.kill(explorer.pid, signal.SIGKILL)
        await agents.have_another_answer()
        agents.stop()
    answers: list[tuple[list[int], DrawnResponse]] = []
    for number, (session, said) in enumerate(agents.said.items()):
        turns = await turns_of(bus, f"agent/{session}", len(said))
        assert len(turns) == len(said)
        for count, (turn, text) in enumerate(zip(turns, said, strict=True)):
            assert turn.answers[0].responses is not None
            (response,) = turn.answers[0].responses
            tokens = tokens_of(response.token_ids)
            words = [word for word in text.split() if word.startswith("t")]
            assert words == [f"t{token}" for token in tokens if token >= FIRST]
            starts = [start for start, _ in response.versions]
            assert starts[0] == 0
            assert starts == sorted(set(starts))
            assert starts[-1] < len(tokens)
            answers.append(([FIRST + number, FIRST + count], response))
    assert {version for _, response in answers for _, version in response.versions} == {0, 1, 2, 3}
    of_several = [one for one in answers if len(one[1].versions) > 1]
    assert of_several
    for prompt, response in of_several[:SEVERAL]:
        assert mismatch_of(trainer.models, prompt, response) < TOLERANCE


def mismatch_of(models: Mapping[int, Path], prompt: list[int], response: DrawnResponse) -> float:
    """How far log-probabilities are from those of the models whose versions the answer names."""
    tokens, told = tokens_of(response.token_ids), logprobs_of(response.logprobs)
    ends = [start for start, _ in response.versions[1:]] + [len(tokens)]
    return max(
        float(mismatch(models[version], prompt, tokens, told)[start:end].max())
        for (start, version), end in zip(response.versions, ends, strict=True)
    )


async def alone(stack: Stack, bus: Bus) -> str:
    """The id of an answer without a session that is on the log."""
    async with stack.client(None) as client:
        answer = await client.chat.completions.create(model="policy", messages=ASKED)
    await turns_of(bus, f"agent/{answer.id}", 1)
    return str(answer.id)


async def a_gateway_dies(stack: Stack, bus: Bus, gateway: Process) -> None:
    """Amid a stream: its client is told by the connection, and goes on at the other with the tokens that were drawn.

    What it had answered without a session is rewarded there, and what it had contributed of it counts no more.
    """
    contributed, left = await alone(stack, bus), await alone(stack, bus)
    await stack.post("/feedback", {"reward": 1, "msg_ids": [contributed], "task_id": "before"})
    assert (await stack.post("/commit", {}))[1]["contributed"] == {"before": 1}
    async with stack.client("moved") as client:
        first = await streamed(client, ASKED)
        await turns_of(bus, "agent/moved", 1)
        messages = [*ASKED, {"role": "assistant", "content": first}, {"role": "user", "content": "t5"}]
        stream = await client.chat.completions.create(model="policy", messages=messages, stream=True, max_tokens=400)
        await anext(stream)
        os.kill(gateway.pid, signal.SIGKILL)
        with pytest.raises((openai.APIError, httpx.HTTPError)):
            [_ async for _ in stream]
        await until(lambda: gateway.poll() is not None)
    for answer, task_id in ((contributed, "after"), (left, "left")):
        body = {"reward": 1, "msg_ids": [answer], "task_id": task_id}
        for counted in (1, 0):
            assert (await stack.post("/feedback", body, gateway=1))[1]["counted"] == counted
    status, told = await stack.post("/commit", {}, gateway=1)
    assert (status, told["contributed"]) == (409, {"left": 1})
    assert told["refused"]["after"].startswith("known_task")
    async with stack.client("moved", gateway=1) as client:
        await streamed(client, messages)
    turns = await turns_of(bus, "agent/moved", 2)
    assert [turn.explorer for turn in turns] == ["gateway-0", "gateway-1"]
    assert (await stack.post("/feedback", {"reward": 1, "session": "moved"}, gateway=1))[1]["counted"] == 1
    assert (await stack.post("/commit", {}, gateway=1))[0] == 200
    async with bus.reader(EXPERIENCES, start="beginning") as reader:
        groups = [
            group async for received in reader.replay() if (group := record_of(received)).task_id == "agent/moved"
        ]
    (sample,) = groups[0].samples()
    drawn = sample.tokens[sample.prompt_length :][sample.mask].tolist()
    assert drawn == [t for turn in turns for one in turn.answers[0].responses or () for t in tokens_of(one.token_ids)]
