"""The health of this process: one state, kept by a task of its event loop, and served where a port is set."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from trinity_bus.config import HealthSettings, KafkaSettings
from trinity_bus.health.server import BrokerCheck, HealthServer
from trinity_bus.health.state import HealthState, Phase

_TURN_S: Final = 0.5

_state: HealthState | None = None


def mark_ready() -> None:
    """The service works now. Without a health endpoint this does nothing."""
    if _state is not None:
        _state.phase = Phase.WORKING


@asynccontextmanager
async def serving(settings: HealthSettings, kafka: KafkaSettings) -> AsyncIterator[None]:
    """Answers probes for the length of the block, where a port is set.

    Raises:
        ConfigError: The port cannot be listened on.
    """
    global _state  # noqa: PLW0603 - there is one process, and its health is one thing
    if settings.port is None:
        yield
        return
    state = _state = HealthState(time.monotonic(), wedged_s=settings.wedged_s, start_s=settings.start_s)
    server = HealthServer(settings, state, BrokerCheck(kafka))
    turning = asyncio.create_task(_turn(state), name="health")
    try:
        yield
    finally:
        state.phase = Phase.STOPPING
        turning.cancel()
        server.close()
        _state = None


async def _turn(state: HealthState) -> None:
    while True:
        state.turned(time.monotonic())
        await asyncio.sleep(_TURN_S)
