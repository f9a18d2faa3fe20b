"""Heartbeats: that an explorer lives, its state, and the version that it serves; at once when one of these changes.

Where there are very many explorers, the coordinator has them send the others less often (``SetPace``).
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass

from schemas import ExplorerHeartbeat
from schemas.event import ExplorerState
from schemas.topics import EXPLORER_EVENTS
from trinity_bus import awake
from trinity_bus.bus import Producer


@dataclass(eq=False)
class Heartbeats:
    """Sends heartbeats. ``interval_s`` is the longest silence, unless the coordinator has set a longer one.

    ``make`` makes the next heartbeat for a state, all but its time. The first one has ``settings``.
    """

    producer: Producer
    _: KW_ONLY
    interval_s: float
    make: Callable[[ExplorerState], ExplorerHeartbeat]
    settings: Mapping[str, str]

    def __post_init__(self) -> None:
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
        told, self.settings = self.settings, {}
        news = {"sent_at": time.time(), "pace_s": self._pace_s, "settings": told}
        record = self.make(self.state).model_copy(update=news)
        await (await self.producer.send(EXPLORER_EVENTS, record.explorer, record))

    async def run(self) -> None:
        while True:
            self._changed.clear()
            await self.send()
            try:
                async with awake.timeout(max(self.interval_s, self._pace_s)):
                    await self._changed.wait()
            except TimeoutError:
                continue
