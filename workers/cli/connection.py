"""How a command finds its settings, its broker and its mesh."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trinity_bus.broker import resolve_bootstrap
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, Settings


def connected_settings() -> Settings:
    """Return the settings of the environment, with a broker's address.

    The configured one, or the embedded one that runs.

    Raises:
        ConfigError: A setting is wrong, or no broker is configured and none runs.
    """
    settings = Settings()
    return settings.model_copy(update={"kafka": resolve_bootstrap(settings.kafka, settings.broker)})


@asynccontextmanager
async def bus_of_mesh(kafka: KafkaSettings, name: str) -> AsyncIterator[Bus]:
    """Provide a connection to a mesh that there is: a namespace that was mistyped gets no topics by being looked at.

    Args:
        kafka: Where it is.
        name: What brokers call the command.

    Raises:
        UnknownTopicError: The namespace has no topics; the message tells which ones have any.
        BusError: The broker cannot be reached.
    """
    async with Bus(kafka, client_id=name) as bus:
        await bus.present()
        yield bus
