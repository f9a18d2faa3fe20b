"""A gateway with real HTTP on both sides, on FAKE engines and a fake log: no model, no broker."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
from openai import AsyncOpenAI
from pydantic import SecretStr

from schemas import ExplorerHeartbeat
from schemas.topics import EXPLORER_EVENTS
from tests.support.fakes.engine import FakeEngine
from tests.support.fakes.log import FakeBus, FakeLog
from tests.support.mesh.waiting import beside, until
from trinity_bus.bus import Bus
from trinity_bus.config import ExplorerSettings, GatewaySettings, KafkaSettings, Settings
from trinity_bus.gateway.fleet import with_proof
from trinity_bus.inference.concurrency import ConcurrencyController
from trinity_bus.testing import CharacterTokenizer
from workers.explorer.http_side import HttpSide
from workers.explorer.weights import ServedVersion
from workers.gateway.service import Gateway

KEY = "a-key-of-the-client"
OTHERS_KEY = "another-clients-key"
SECRET = SecretStr("what-gateways-show")
ASKED: list[Any] = [{"role": "user", "content": "6*7="}]
ADD: list[Any] = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]

JUDGE = ExplorerHeartbeat(
    explorer="judge-0", incarnation="life", state="ready", slots=1, model_version=-1, pool="judge"
)
"""What the one explorer of a pool of judges says, but for its address."""


@dataclass(slots=True)
class Rig:
    log: FakeLog
    gateway: Gateway
    engines: dict[str, FakeEngine] = field(default_factory=dict)
    sides: dict[str, HttpSide] = field(default_factory=dict)
    bearable: dict[str, ConcurrencyController] = field(default_factory=dict)
    """How much each engine bears, as far as a test has it observe it."""

    @property
    def url(self) -> str:
        return f"http://{self.gateway.address}"

    def client(self, key: str = KEY, session: str | None = None, **options: Any) -> AsyncOpenAI:
        path = "" if session is None else f"/sessions/{session}"
        return AsyncOpenAI(base_url=f"{self.url}{path}/v1", api_key=key, max_retries=0, **options)

    async def post(self, path: str, key: str = KEY, **body: Any) -> tuple[int, Any]:
        headers = {"x-api-key": key}
        async with aiohttp.ClientSession(headers=headers) as http, http.post(f"{self.url}{path}", json=body) as answer:
            return answer.status, await answer.json()

    def hold(self) -> None:
        """Has all engines draw nothing."""
        for engine in self.engines.values():
            engine.open.clear()

    def go_on(self) -> None:
        for engine in self.engines.values():
            engine.open.set()

    @property
    def waiting(self) -> list[str]:
        """Explorers that have been asked, and hold."""
        return [name for name, engine in self.engines.items() if engine.waiting]

    async def heard(self, name: str, **said: Any) -> None:
        """Has an explorer send a heartbeat, and waits until the gateway has it."""
        beat: dict[str, Any] = {
            "explorer": name,
            "incarnation": "life",
            "state": "ready",
            "slots": 1,
            "model_version": 0,
            **said,
        }
        own = self.sides.get(name) if "address" not in said else None
        told = ExplorerHeartbeat(**beat)
        told = with_proof(told, SECRET.get_secret_value()) if own is None else own.told(told)
        await (await FakeBus(self.log).producer().send(EXPLORER_EVENTS, name, told))
        usable = beat["state"] == "ready"
        await until(lambda: (name in [one.name for one in self.gateway.explorers.usable]) == usable)

    async def lose(self, name: str) -> None:
        """Has an explorer end at once, amid whatever it answers."""
        await self.sides[name].__aexit__(None, None, None)


async def say(client: AsyncOpenAI, messages: Any = ASKED, **how: Any) -> Any:
    """One request to the model."""
    return await client.chat.completions.create(model="policy", messages=messages, **how)


@asynccontextmanager
async def rig(explorers: int = 1, *, log: FakeLog | None = None, **gateway: Any) -> AsyncIterator[Rig]:
    """A gateway that listens, and has heard of its explorers; on a log that it shares with others, or on its own."""
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers="fake:9092"),
        gateway=GatewaySettings(port=0, api_keys=SecretStr(f"me:{KEY} you:{OTHERS_KEY}"), **gateway),
        explorer=ExplorerSettings(http_port=0, http_key=SECRET),
    )
    log = FakeLog() if log is None else log
    async with AsyncExitStack() as stack:
        here = Rig(log, Gateway(settings, cast("Bus", FakeBus(log)), CharacterTokenizer()))
        for number in range(explorers):
            name = f"explorer-{number}"
            engine = here.engines[name] = FakeEngine()
            bearable = here.bearable[name] = ConcurrencyController(settings.explorer.slots, settings.explorer.min_slots)
            here.sides[name] = await stack.enter_async_context(
                HttpSide(settings.explorer, engine, ServedVersion(engine.model_version), bearable, CharacterTokenizer)
            )
        async with beside(here.gateway.run()) as running:
            await until(lambda: bool(here.gateway.address) or running.done())
            for name in here.engines:
                await here.heard(name)
            yield here
