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


@asynccontextmanager
async def console(folder: Path, **own: Any) -> AsyncIterator[Client]:
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers="127.0.0.1:1", namespace="here"),
        console=ConsoleSettings(folder=folder, port=0, **own),
    )
    async with TestClient(TestServer(Console(settings).app())) as client:
        yield client


@asynccontextmanager
async def with_tokens(folder: Path) -> AsyncIterator[Client]:
    async with console(folder, token=SecretStr(TOKEN), viewer_token=SecretStr(VIEWERS)) as client:
        yield client
