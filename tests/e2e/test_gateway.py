"""An agent with OpenAI's client; gateway, vLLM, coordinator and Kafka as processes: what was drawn is contributed."""

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from benchmarks._tiny_model import make_tiny_qwen3
from schemas import ExperienceGroup, Turn
from schemas.topics import EXPERIENCES, TURNS
from tests.support.mesh.mesh import Mesh
from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.processes import log_shown_on_failure
from tests.support.mesh.records import record_of
from tests.support.mesh.waiting import until, wait_until
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings
from trinity_bus.gateway.wire import tokens_of
from trinity_bus.runtime.process import Child, tail

pytestmark = pytest.mark.e2e

KEY = "a-key-of-the-client"
HEADERS = {"Authorization": f"Bearer {KEY}"}
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
ASKED: list[Any] = [{"role": "user", "content": "t7 t8 t9"}]


class Stack:
    """A mesh, and what is before it."""

    def __init__(self, mesh: Mesh, model: Path) -> None:
        self.mesh = mesh
        (self.port,) = quiet_ports(1)
        self._environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS": str(mesh.kafka.bootstrap_servers),
            "TRINITY_BUS_MESH__NAMESPACE": mesh.kafka.namespace,
            "TRINITY_BUS_MESH__MODE": "explore",
            "TRINITY_BUS_MESH__MODEL_PATH": str(model),
            "TRINITY_BUS_MESH__DTYPE": "float32",
            "TRINITY_BUS_MESH__MAX_MODEL_LEN": "512",
            "TRINITY_BUS_MESH__MAX_TOKENS": "16",
            "TRINITY_BUS_EXPLORER__HTTP_PORT": "0",
            "TRINITY_BUS_EXPLORER__HTTP_KEY": "what-gateways-show",
            "TRINITY_BUS_EXPLORER__SLOTS": "4",
            "TRINITY_BUS_GATEWAY__PORT": str(self.port),
            "TRINITY_BUS_GATEWAY__API_KEYS": f"agent:{KEY}",
        }

    @contextlib.contextmanager
    def service(self, name: str) -> Iterator[Child]:
        """One process, ready."""
        log = self.mesh.folder / f"{name}-{len(list(self.mesh.folder.glob('*.log')))}.log"
        command = [sys.executable, "-m", "workers.cli.app", "run", name]
        with Child(command, env=self._environment, output=log) as child, log_shown_on_failure(child, log):
            wait_until(lambda: "is ready" in tail(log, 200) or child.poll() is not None, f"{name} that is ready", 200)
            assert child.poll() is None
            yield child

    @contextlib.asynccontextmanager
    async def client(self, session: str) -> AsyncIterator[openai.AsyncOpenAI]:
        url = f"http://127.0.0.1:{self.port}/sessions/{session}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
            yield client

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        async with (
            aiohttp.ClientSession(headers=HEADERS) as http,
            http.post(f"http://127.0.0.1:{self.port}{path}", json=body) as response,
        ):
            return response.status, await response.json()


@pytest.mark.timeout(600)
async def test_what_an_agent_draws_through_a_gateway_becomes_experiences(kafka: KafkaSettings, tmp_path: Path) -> None:
    model = make_tiny_qwen3(tmp_path / "model", seed=0)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    stack = Stack(Mesh(kafka, tmp_path), model)
    async with stack.mesh.connected() as (bus, _):
        with stack.mesh.coordinator(max_staleness=100), stack.service("explorer"):
            with stack.service("gateway") as gateway:
                said = await converse(stack)
                await contribute(stack, bus, said)
                await killed_amid_a_stream(stack, gateway)
            with stack.service("gateway"):
                async with stack.client("after") as client:
                    assert (await client.models.list()).data[0].id == "policy"
                    await client.chat.completions.create(model="policy", messages=ASKED)


async def converse(stack: Stack) -> list[str]:
    """Two turns, the second streamed; what was said."""
    async with stack.client("s-1") as client:
        async with aiohttp.ClientSession() as http:

            async def healthy() -> bool:
                async with http.get(f"http://127.0.0.1:{stack.port}/health") as response:
                    return response.status == 200

            while not await healthy():
                pass
        answer = await client.chat.completions.create(model="policy", messages=ASKED, logprobs=True)
        first = answer.choices[0].message
        messages = [*ASKED, first.model_dump(exclude_none=True), {"role": "user", "content": "t5"}]
        second = ""
        async for chunk in await client.chat.completions.create(model="policy", messages=messages, stream=True):
            second += chunk.choices[0].delta.content or ""
    return [first.content or "", second]


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
    turns: list[Turn] = []

    async def kept() -> int:
        async with bus.reader(TURNS, start="beginning") as reader:
            turns[:] = [record_of(received) async for received in reader.replay()]
        return len(turns)

    while await kept() < 2:
        pass
    answers = [turn.answers[0].responses for turn in sorted(turns, key=lambda turn: turn.number)]
    assert drawn == [t for responses in answers for one in responses or () for t in tokens_of(one.token_ids)]
    words = [f"t{token}" for token in drawn if token != 1]
    assert " ".join(said).split() == words
    assert (sample.logprobs[sample.mask] < 0).all()
    async with stack.client("s-2") as client:
        await client.chat.completions.create(model="policy", messages=ASKED)
    await stack.post("/feedback", {"reward": 1, "session": "s-2", "task_id": "task-1"})
    status, refused = await stack.post("/commit", {})
    assert status == 409
    assert refused["refused"]["task-1"].startswith("known_task")


async def killed_amid_a_stream(stack: Stack, gateway: Child) -> None:
    """The client is told, by its connection; another gateway takes its place."""
    url = f"http://127.0.0.1:{stack.port}/v1/chat/completions"
    body = {"model": "policy", "messages": ASKED, "stream": True, "max_tokens": 480}
    async with aiohttp.ClientSession(headers=HEADERS) as http, http.post(url, json=body) as response:
        await response.content.readline()
        os.kill(gateway.pid, signal.SIGKILL)
        with pytest.raises(aiohttp.ClientError):
            await response.content.read()
    await until(lambda: gateway.poll() is not None)
