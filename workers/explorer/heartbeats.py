"""Heartbeats: that an explorer lives, its state, and the version that it serves; at once when one of these changes.

Where there are very many explorers, the coordinator has them send the others less often (``SetPace``).
"""

import asyncio
import time
from collections.abc import Callable, Mapping

from schemas import ExplorerHeartbeat
from schemas.event import ExplorerState
from schemas.topics import EXPLORER_EVENTS
from trinity_bus import awake
from trinity_bus.bus import Producer


class Heartbeats:
    """Sends heartbeats. ``interval_s`` is the longest silence, unless the coordinator has set a longer one.

    ``make`` makes the next heartbeat for a state, all but its time. The first one has ``settings``.
    """

    def __init__(
        self,
        producer: Producer,
        *,
        interval_s: float,
        make: Callable[[ExplorerState], ExplorerHeartbeat],
        settings: Mapping[str, str],
    ) -> None:
        self._producer = producer
        self._interval_s = interval_s
        self._make = make
        self._settings = settings
        self._changed = asyncio.Event()
        self._pace_s = 0.0
        self.state: ExplorerState = "ready"

    def set_state(self, state: ExplorerState) -> None:
        self.state = state
        self._changed.set()

    def set_pace(self, pace_s: float) -> None:
        self._pace_s = pace_s
        self._changed.set()

    def tell(self) -> None:
        self._changed.set()

    async def send(self) -> None:
        """Send one and wait until it is durable."""
        told, self._settings = self._settings, {}
        news = {"sent_at": time.time(), "pace_s": self._pace_s, "settings": told}
        record = self._make(self.state).model_copy(update=news)
        await (await self._producer.send(EXPLORER_EVENTS, record.explorer, record))

    async def run(self) -> None:
        while True:
            self._changed.clear()
            await self.send()
            try:
                async with awake.timeout(max(self._interval_s, self._pace_s)):
                    await self._changed.wait()
            except TimeoutError:
                continue
