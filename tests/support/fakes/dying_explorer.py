"""``python -m tests.support.fakes.dying_explorer``: an explorer on a FAKE engine that dies amid the pieces of a group.

It kills itself with SIGKILL when one record of experiences is durable, before it sends the next.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable
from typing import Any

from schemas import Position
from schemas.topic import Topic
from schemas.topics import EXPERIENCES
from tests.support.fakes.engine import FakeEngine, explore
from trinity_bus.bus import Bus, Producer


class DyingProducer(Producer):
    """Lives until one record of experiences is durable."""

    async def send(self, topic: Topic, *args: Any, **kwargs: Any) -> Awaitable[Position]:
        sending = await super().send(topic, *args, **kwargs)
        if topic is EXPERIENCES:
            await sending
            os.kill(os.getpid(), signal.SIGKILL)
        return sending


class DyingBus(Bus):
    def producer(self, *, transactional_id: str | None = None) -> Producer:
        return DyingProducer(self.settings, client_id=self.client_id, transactional_id=transactional_id)


async def main() -> None:
    await explore(FakeEngine(answer="4" * int(os.environ["ANSWER_TOKENS"])), DyingBus)


if __name__ == "__main__":
    asyncio.run(main())
