"""What a client holds while it is connected, a bus, a producer and a command channel; and how clients connect."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import ClassVar, Self

from schemas.topic import Topic
from schemas.topics import COMMANDS, REPLIES, TASKS
from trinity_bus.broker import resolve_bootstrap
from trinity_bus.bus import Bus, Producer
from trinity_bus.client.channel import CommandChannel
from trinity_bus.config import Settings
from trinity_bus.errors import NotStartedError

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


class Connected:
    """Base of all clients: connects and disconnects as often as it is told to, also as an async context manager.

    Whatever asks the coordinator raises ``NoCoordinatorError`` where none answers.

    Args:
        settings: Where the log is. Read from the environment where absent.
        bus: A connected bus to use, that outlives this object; its own where absent.
        name: Whose its batches and tasks are: other clients of this name may end them, and share slots and caps.
        topics: What it reads and writes besides tasks, commands and replies.
    """

    _NOT_YET: ClassVar[str] = "not started: await start() first."

    def __init__(self, settings: Settings | None, bus: Bus | None, name: str, topics: Sequence[Topic]) -> None:
        self._given = settings, bus, name, topics
        self._connection: Connection | None = None
        self._changing = asyncio.Lock()

    async def start(self) -> None:
        """Connect. Nothing happens where that is done already.

        Raises:
            BusError: The broker cannot be reached.
            BrokerError: No broker is configured, and no embedded one runs.
        """
        async with self._changing:
            if self._connection is not None:
                return
            connection = await Connection.open(*self._given)
            try:
                await self._opened(connection)
            except BaseException:
                await connection.close()
                raise
            self._connection = connection

    async def stop(self) -> None:
        """Disconnect. Nothing happens where it is done already.

        Raises:
            SendError: Something that was sent is not known to be durable.
        """
        async with self._changing:
            connection, self._connection = self._connection, None
            if connection is not None:
                try:
                    await self._closing()
                finally:
                    await connection.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _opened(self, connection: Connection) -> None:
        # What is to be closed goes on the connection's stack.
        pass

    async def _closing(self) -> None:
        pass

    def _connected(self) -> Connection:
        if self._connection is None:
            raise NotStartedError(f"{type(self).__name__} is {self._NOT_YET}")
        return self._connection


def tell_unused(*given: object) -> None:
    """Warn that actors or models were given to a client, as the reference's are, and that they are not used."""
    if any(one is not None for one in given):
        log.warning("models and actors that a client is given are not used: the services of the mesh do the work")
