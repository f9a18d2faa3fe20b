"""What workflows ask of explorers of other pools: a judge's answer, a teacher's log-probabilities.

::

    explorer-events --heartbeats of these pools--> a fleet for each --> ``trinity_bus.gateway.explorers`` --HTTP--> them

The pools are those of ``explorer.auxiliary_pools``; without any, nothing is read and nobody can be asked.

====================================  ==================================================================================
what fails                            what the workflow gets
====================================  ==================================================================================
a pool that is not among them         ``UnknownPoolError``, at once
no explorer of it, for a while        ``NoEngineError``
no answer in time                     ``EngineSlowError``
what the engine, or template refuses  ``RequestRefusedError``
explorers of it, one after the other  ``GenerationError``
====================================  ==================================================================================
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Final, Self

from schemas.topics import EXPLORER_EVENTS
from trinity_bus.bus import Bus, Received, TopicFollower
from trinity_bus.config import ExplorerSettings
from trinity_bus.gateway.explorers import Explorers
from trinity_bus.gateway.fleet import ServingFleet
from trinity_bus.health.process import watching
from trinity_bus.inference.errors import UnknownPoolError

_SILENCE_S: Final = 10.0  # after which an explorer is taken to be gone


class AuxiliaryPools:
    """Asks explorers of other pools. An async context manager."""

    def __init__(self, settings: ExplorerSettings, bus: Bus) -> None:
        self._bus = bus
        names = settings.auxiliary_pools.split(",") if settings.auxiliary_pools is not None else []
        key = "" if settings.http_key is None else settings.http_key.get_secret_value()
        self._explorers = {
            name: Explorers(
                ServingFleet(name, model=settings.model, key=key, silence_s=_SILENCE_S),
                key=key,
                wait_s=settings.auxiliary_wait_s,
                timeout_s=settings.auxiliary_timeout_s,
                max_tokens=settings.max_tokens,
            )
            for name in names
        }
        self._stack = AsyncExitStack()
        # raises what ends the following of heartbeats
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        if self._explorers:
            follower = TopicFollower(
                lambda start: self._bus.reader(EXPLORER_EVENTS, start=start), self._hear, self.lost.set_exception
            )
            await follower.start()
            self._stack.push_async_callback(follower.stop)
            self._stack.enter_context(watching("heartbeats of other pools", follower.keeps_up))
            for explorers in self._explorers.values():
                await self._stack.enter_async_context(explorers)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def __call__(self, pool: str) -> Explorers:
        if pool not in self._explorers:
            known = ", ".join(sorted(self._explorers)) or "none"
            raise UnknownPoolError(f"pool {pool!r} is not asked here; explorer.auxiliary_pools has {known}")
        return self._explorers[pool]

    def _hear(self, received: Received[Any]) -> None:
        for explorers in self._explorers.values():
            explorers.heard(received.record)
