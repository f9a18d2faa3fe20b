"""A real explorer on a FAKE engine: an answer follows from the prompt and takes next to no time; there is no model.

``python -m tests.support.fakes.zero_cost_explorer``, with the settings of the environment; to be killed.
``FAKE_ENGINE_DELAY_S`` is the longest time that an answer takes, so that something is under way at every moment.
"""

import asyncio
import logging
import os
import random
import sys
from collections.abc import Sequence

from schemas import Sampling
from tests.support.fakes.engine import TOKENIZER, FakeEngine
from trinity_bus.bus import Bus
from trinity_bus.chat.messages import Completion
from trinity_bus.config import Settings
from trinity_bus.errors import TrinityError
from trinity_bus.runners.fork_server import ForkServer
from trinity_bus.runtime.service import run_service
from trinity_bus.testing import CharacterTokenizer
from workers.explorer.service import ExplorerService

WORDS = ("red", "green", "blue")
"""What its tasks want to hear, in this order."""


def answer_to(prompt: str) -> str:
    """What the engine says: as many of the words, from the first on, as the prompt's last digit modulo four."""
    right = int(prompt.rstrip()[-1]) % 4
    return " ".join((*WORDS[:right], *("black",) * (len(WORDS) - right)))


class ZeroCostEngine(FakeEngine):
    """Says what ``answer_to`` says, with the version that it serves when it is asked."""

    def __init__(self, longest_s: float) -> None:
        super().__init__(version=-1)
        self._longest_s = longest_s
        self._tokenizer = CharacterTokenizer()
        self._random = random.Random()  # noqa: S311 - delays

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling: Sampling, n: int = 1, traceparent: str | None = None
    ) -> list[Completion]:
        version = self.model_version
        await asyncio.sleep(self._random.uniform(0, self._longest_s))
        token_ids = self._tokenizer.encode(answer_to(self._tokenizer.decode(prompt_token_ids)))
        self.tokens_generated += n * len(token_ids)
        return [Completion(token_ids, [-0.5] * len(token_ids), "stop", [(0, version)])] * n


async def run(settings: Settings) -> None:
    engine = ZeroCostEngine(float(os.environ.get("FAKE_ENGINE_DELAY_S", "0")))
    with ForkServer(settings, tokenizer=TOKENIZER) as fork_server:
        async with Bus(settings.kafka, client_id=settings.explorer.name) as bus:
            await bus.ensure_topics()
            await ExplorerService(settings, bus, engine, fork_server).run()


def main() -> None:
    """As the real explorer's: what goes wrong is one line."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        settings = Settings()
        run_service(lambda: run(settings))
    except TrinityError as error:
        sys.exit(f"explorer: {error}")


if __name__ == "__main__":
    main()
