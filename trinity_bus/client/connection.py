"""What a client holds while it is connected, a bus, a producer and a command channel; and how clients connect.

Where the coordinator dies, its successor goes on with all that clients asked of it, and answers.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from schemas import AbortBatch, BatchResult, CommandReply, FinalizeBatch, SubmitBatch
from schemas.record import BatchType
from schemas.topic import Topic
from schemas.topics import COMMANDS, REPLIES, TASKS
from trinity_bus.broker import resolve_bootstrap
from trinity_bus.bus import Bus, Producer
from trinity_bus.client.channel import CommandChannel
from trinity_bus.client.tasks import BatchId, batch_name
from trinity_bus.config import Settings
from trinity_bus.errors import (
    NotOwnerError,
    NotStartedError,
    RefusedError,
    TimedOutError,
    TrinityError,
    UnknownBatchError,
)

log = logging.getLogger(__name__)

# what a coordinator's refusal is to a caller, with the texts that callers of the reference know
_OF_BATCHES: Final[dict[str, tuple[type[TrinityError], str]]] = {
    "unknown_batch": (UnknownBatchError, "Batch {} is not registered."),
    "timeout": (TimedOutError, "Timeout waiting for batch {}."),
    "already_active": (RefusedError, "Batch {} is already active."),
}


def check_reply(reply: CommandReply, batch_id: BatchId, expected: BatchType | None = None) -> None:
    """Raise what a reply says, if that is an error.

    ``expected``: the type that the command took the batch to have, where it was to finalize it.
    """
    if reply.error is None:
        return
    if reply.error in _OF_BATCHES:
        kind, text = _OF_BATCHES[reply.error]
        raise kind(text.format(batch_id))
    # It has the batch's name on the log, which the caller may never have seen.
    detail = reply.detail.replace(reply.batch_id, str(batch_id))
    if reply.error == "not_yours":
        raise NotOwnerError(detail)
    if reply.error == "batch_closed" and expected is not None:
        raise UnknownBatchError(detail)
    if reply.error == "wrong_type" and expected is not None:
        actual = "eval" if expected == "train" else "train"
        raise RefusedError(f"Batch {batch_id} is {actual}, expected {expected}.")
    raise RefusedError(detail or f"Batch {batch_id}: {reply.error}.")


@dataclass(frozen=True, slots=True)
class Connection:
    """What is open, and what all clients do with batches, by the ids that callers give."""

    bus: Bus
    producer: Producer
    channel: CommandChannel
    stack: AsyncExitStack  # what else is to be closed goes on it

    async def submit(self, batch_id: BatchId, kind: BatchType, count: int, min_wait_num: int | None = None) -> None:
        reply = await self.channel.ask(
            SubmitBatch,
            batch_id=batch_name(batch_id),
            batch_type=kind,
            expected_task_count=count,
            min_wait_num=min_wait_num,
        )
        check_reply(reply, batch_id)

    async def finalize(self, batch_id: BatchId, kind: BatchType, timeout_s: float | None) -> BatchResult:
        reply = await self.channel.ask(
            FinalizeBatch, batch_id=batch_name(batch_id), batch_type=kind, timeout_s=timeout_s
        )
        check_reply(reply, batch_id, kind)
        if reply.result is None:
            raise RefusedError(f"Batch {batch_id}: the coordinator's reply has no result; are both of one version?")
        return reply.result

    async def abort(
        self, batch_id: BatchId, reason: str, *, keep_partial_results: bool, operator: bool = False
    ) -> None:
        reply = await self.channel.ask(
            AbortBatch,
            operator=operator,
            batch_id=batch_name(batch_id),
            reason=reason,
            keep_partial_results=keep_partial_results,
        )
        check_reply(reply, batch_id)


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
        self._stopping = False  # so that nothing is begun that nobody would answer

    async def start(self) -> None:
        """Connect. Nothing happens where that is done already. BusError or BrokerError: no broker can be reached."""
        async with self._changing:
            if self._connection is not None:
                return
            settings, bus, name, topics = self._given
            stack = AsyncExitStack()
            try:
                if bus is None:
                    settings = settings if settings is not None else Settings()
                    kafka = resolve_bootstrap(settings.kafka, settings.broker)
                    bus = await stack.enter_async_context(Bus(kafka, client_id=name))
                await bus.ensure_topics([TASKS, COMMANDS, REPLIES, *topics])
                producer = await stack.enter_async_context(bus.producer())
                channel = await stack.enter_async_context(CommandChannel(bus, producer, name=name))
                connection = Connection(bus, producer, channel, stack)
                await self._opened(connection)
            except BaseException:
                await stack.aclose()
                raise
            self._connection = connection

    async def stop(self) -> None:
        """Disconnect. Nothing happens where it is done already; SendError where something sent may not be durable."""
        async with self._changing:
            if (connection := self._connection) is not None:
                self._stopping = True
                try:
                    await self._closing()
                finally:
                    self._connection, self._stopping = None, False
                    await connection.stack.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def connection(self) -> Connection:
        """What is open; NotStartedError where nothing is."""
        if self._connection is None or self._stopping:
            raise NotStartedError(f"{type(self).__name__} is {self._NOT_YET}")
        return self._connection

    async def _opened(self, connection: Connection) -> None:
        # What is to be closed goes on the connection's stack.
        pass

    async def _closing(self) -> None:
        pass


def tell_unused(*given: object) -> None:
    """Warn that actors or models were given to a client, as the reference's are, and that they are not used."""
    if any(one is not None for one in given):
        log.warning("models and actors that a client is given are not used: the services of the mesh do the work")
