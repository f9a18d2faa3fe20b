"""A FAKE engine that never answers."""

import asyncio
from typing import Any

from trinity_bus.rollout.workflow import RolloutContext
from trinity_bus.testing import ScriptedEngine


class SilentEngine(ScriptedEngine):
    """FAKE: tells when it was asked, and when what it was asked for was aborted."""

    def __init__(self) -> None:
        super().__init__([])
        self.asked, self.aborted = asyncio.Event(), asyncio.Event()

    async def generate(self, *_: Any, **__: Any) -> Any:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.aborted.set()

    def context(self) -> RolloutContext:
        return RolloutContext(engine=self, tokenizer=self.tokenizer, repeat_times=1)
