"""``python -m tests.support.fakes.hanging_explorer``: an explorer on a FAKE engine that stops answering.

It hangs at the request of the number in ``HANG_AT``, to be killed there; each answer is the number of the request.
"""

import asyncio
import os
from collections.abc import Sequence

from schemas import Sampling
from tests.support.fakes.engine import FakeEngine, explore
from trinity_bus.chat.messages import Completion


class CountingEngine(FakeEngine):
    """Answers ``<prefix><number of the request>``."""

    def __init__(self, prefix: str, hang_at: int) -> None:
        super().__init__()
        self._prefix, self._hang_at, self.requests = prefix, hang_at, 0

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling: Sampling, n: int = 1, traceparent: str | None = None
    ) -> list[Completion]:
        if self.requests == self._hang_at:
            await asyncio.Event().wait()
        self.answer = f"{self._prefix}{self.requests}"
        self.requests += 1
        return await super().generate(prompt_token_ids, sampling, n, traceparent)


async def main() -> None:
    await explore(CountingEngine("a", int(os.environ["HANG_AT"])))


if __name__ == "__main__":
    asyncio.run(main())
