"""How a command finds its settings, its broker and its mesh."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from trinity_bus.broker import resolve_bootstrap
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.runtime.service import run_service


def connected_settings() -> Settings:
    """Return the environment's settings, with the address of the configured broker, or the embedded one that runs."""
    settings = Settings()
    return settings.model_copy(update={"kafka": resolve_bootstrap(settings.kafka, settings.broker)})


@asynccontextmanager
async def bus_of_mesh(kafka: KafkaSettings, name: str) -> AsyncIterator[Bus]:
    """Provide a connection to a mesh that there is: a namespace that was mistyped gets no topics by being looked at."""
    async with Bus(kafka, client_id=name) as bus:
        await bus.present()
        yield bus


def on_mesh[R](name: str, action: Callable[[Bus], Coroutine[Any, Any, R]]) -> R | None:
    """Run a command over a connection to the mesh of the settings; None where it was told to end."""
    kafka = connected_settings().kafka

    async def connected() -> R:
        async with bus_of_mesh(kafka, name) as bus:
            return await action(bus)

    return run_service(connected)
