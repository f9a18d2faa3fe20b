"""The health of this process: one state, kept by a task of its event loop, and served where a port is set."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from trinity_bus import awake
from trinity_bus.bus.write.outages import what_waits
from trinity_bus.config import HealthSettings, KafkaSettings
from trinity_bus.health.server import BrokerCheck, HealthServer, HealthState, Phase

_TURN_S: Final = 0.5

_state: HealthState | None = None
_watched: dict[str, Callable[[], Awaitable[bool]]] = {}


def mark_ready() -> None:
    """Note that the service works now. Without a health endpoint this does nothing."""
    if _state is not None:
        _state.phase = Phase.WORKING


@contextmanager
def watching(what: str, keeps_up: Callable[[], Awaitable[bool]]) -> Iterator[None]:
    """For the length of the block this process is not ready when something that it is to read is not read for long.

    Args:
        what: Such as ``"the inputs"``, for people.
        keeps_up: Whether something was read since the last call, or there was nothing to read. Never raises.
    """
    numbered = (what if number == 1 else f"{what} ({number})" for number in itertools.count(1))
    name = next(one for one in numbered if one not in _watched)
    _watched[name] = keeps_up
    try:
        yield
    finally:
        del _watched[name]
        if _state is not None:
            _state.done_reading(name)


async def readings() -> dict[str, bool]:
    return {what: await keeps_up() for what, keeps_up in list(_watched.items())}


@asynccontextmanager
async def serving(settings: HealthSettings, kafka: KafkaSettings) -> AsyncIterator[None]:
    """Answer probes for the length of the block, where a port is set; ConfigError where it cannot be listened on."""
    global _state  # noqa: PLW0603 - there is one process, and its health is one thing
    if settings.port is None:
        yield
        return
    state = _state = HealthState(
        awake.now(), wedged_s=settings.wedged_s, start_s=settings.start_s, unread_s=settings.unread_s
    )
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
        state.turned(awake.now())
        state.waiting = what_waits()
        for what, is_read in (await readings()).items():
            if what in _watched:
                state.reading(what, awake.now(), keeps_up=is_read)
        await asyncio.sleep(_TURN_S)
