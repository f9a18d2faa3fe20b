"""A console that answers over real HTTP, and has no broker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from pydantic import SecretStr

from trinity_bus.config import ConsoleSettings, KafkaSettings, Settings
from workers.console.service import Console

TOKEN = "the-token-of-operators"  # noqa: S105 - of a test
VIEWERS = "the-token-of-viewers"

type Client = TestClient[Any, Any]


def settings_of(folder: Path, **own: Any) -> Settings:
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1", namespace="here")
    return Settings(kafka=kafka, console=ConsoleSettings(folder=folder, port=0, **own))


@asynccontextmanager
async def console(folder: Path, **own: Any) -> AsyncIterator[Client]:
    async with TestClient(TestServer(Console(settings_of(folder, **own)).app())) as client:
        yield client


async def status_of(client: Client, path: str, method: str = "GET", **how: Any) -> int:
    """The status of an answer, not of where it leads."""
    async with client.request(method, path, allow_redirects=False, **how) as answer:
        return answer.status


@asynccontextmanager
async def with_tokens(folder: Path) -> AsyncIterator[Client]:
    async with console(folder, token=SecretStr(TOKEN), viewer_token=SecretStr(VIEWERS)) as client:
        yield client
