"""``python -m tests.support.gateway.lone_explorer``: an explorer's HTTP side on a FAKE engine, to be killed.

It prints its address. Of each answer, ``abcdef``, it draws three tokens and no more.
"""

import asyncio
import sys

from schemas import ExplorerHeartbeat
from tests.support.fakes.engine import FakeEngine
from tests.support.gateway.rig import SECRET
from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.concurrency import ConcurrencyController
from trinity_bus.testing import CharacterTokenizer
from workers.explorer.http_side import HttpSide
from workers.explorer.weights import ServedVersion


async def main() -> None:
    engine = FakeEngine(answer="abcdef", version=1)
    engine.hang_after = 3
    settings = ExplorerSettings(http_port=0, http_key=SECRET)
    async with HttpSide(settings, engine, ServedVersion(1), ConcurrencyController(64, 1), CharacterTokenizer) as side:
        side.told(ExplorerHeartbeat(explorer="lone", incarnation="life", state="ready", slots=1))
        sys.stdout.write(f"{side.address}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
