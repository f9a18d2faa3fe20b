"""What a client holds while it is connected: a bus, a producer and a command channel."""

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Self

from schemas.topic import Topic
from schemas.topics import COMMANDS, REPLIES, TASKS
from trinity_bus.broker import resolve_bootstrap
from trinity_bus.bus import Bus, Producer
from trinity_bus.client.channel import CommandChannel
from trinity_bus.config import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Connection:
    """Open until ``close``."""

    bus: Bus
    producer: Producer
    channel: CommandChannel
    stack: AsyncExitStack  # what else is to be closed goes on it

    @classmethod
    async def open(cls, settings: Settings | None, bus: Bus | None, name: str, topics: Sequence[Topic] = ()) -> Self:
        """Connect, over ``bus`` if given, which outlives this.

        Raises:
            BusError: The broker cannot be reached.
            BrokerError: No broker is configured, and no embedded one runs.
        """
        async with AsyncExitStack() as stack:
            if bus is None:
                settings = settings if settings is not None else Settings()
                kafka = resolve_bootstrap(settings.kafka, settings.broker)
                bus = await stack.enter_async_context(Bus(kafka, client_id=name))
            await bus.ensure_topics([TASKS, COMMANDS, REPLIES, *topics])
            producer = await stack.enter_async_context(bus.producer())
            channel = await stack.enter_async_context(CommandChannel(bus, producer, name=name))
            return cls(bus, producer, channel, stack.pop_all())

    async def close(self) -> None:
        """Disconnect; SendError where something that was sent is not known to be durable."""
        await self.stack.aclose()


def tell_unused(*given: object) -> None:
    """Warn that actors or models were given to a client, as the reference's are, and that they are not used."""
    if any(one is not None for one in given):
        log.warning("models and actors that a client is given are not used: the services of the mesh do the work")
