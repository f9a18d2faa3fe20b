"""An explorer on a FAKE engine as a process, to be killed: ``python -m tests.support.fakes.explorer KIND``.

All else of it is real, with the settings of the environment.

===============  =======================================================================================================
``words``        an answer follows from the prompt, see :func:`answer_to`; one takes ``FAKE_ENGINE_DELAY_S`` at most, so
                 that something is under way at every moment
``answers``      says ``ANSWER``, so many times as ``TIMES`` says; without the former it hangs, and where there is
                 ``HANG_AFTER``, after so many tokens of a stream
``hangs``        stops answering at the request of the number in ``HANG_AT``; each answer is the number of the request
``dies``         likewise, and kills itself amid the pieces of a group: when one record of experiences is durable
===============  =======================================================================================================
"""

import asyncio
import logging
import os
import random
import signal
import sys
from collections.abc import Awaitable, Sequence
from typing import Any

from benchmarks._scheduling.explorer import ZeroCostEngine
from schemas import Position, Sampling
from schemas.topic import Topic
from schemas.topics import EXPERIENCES
from tests.support.fakes.engine import TOKENIZER, FakeEngine
from trinity_bus.bus import Bus, Producer
from trinity_bus.chat.messages import Completion
from trinity_bus.config import Settings
from trinity_bus.errors import TrinityError
from trinity_bus.inference.completion import Watch
from trinity_bus.runners.fork_server import ForkServer
from trinity_bus.runtime.service import run_service
from trinity_bus.testing import CharacterTokenizer
from workers.explorer.service import ExplorerService

WORDS = ("red", "green", "blue")
"""What tasks for ``words`` want to hear, in this order."""


def answer_to(prompt: str) -> str:
    """As many of the words, from the first on, as the prompt's last digit modulo four."""
    right = int(prompt.rstrip()[-1]) % 4
    return " ".join((*WORDS[:right], *("black",) * (len(WORDS) - right)))


class WordsEngine(ZeroCostEngine):
    """Says what ``answer_to`` says, with the version that it serves when it is asked."""

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        n: int = 1,
        traceparent: str | None = None,
        *,
        watch: Watch | None = None,
        trained: bool = False,
    ) -> list[Completion]:
        version, tokenizer = self.model_version, CharacterTokenizer()
        await asyncio.sleep(random.uniform(0, float(os.environ.get("FAKE_ENGINE_DELAY_S", "0"))))  # noqa: S311 - delays
        token_ids = tokenizer.encode(answer_to(tokenizer.decode(prompt_token_ids)))
        self.tokens_generated += n * len(token_ids)
        return [Completion(token_ids, [-0.5] * len(token_ids), "stop", [(0, version)])] * n


class CountingEngine(FakeEngine):
    """Answers ``<prefix><number of the request>``."""

    def __init__(self, prefix: str, hang_at: int) -> None:
        super().__init__()
        self._prefix, self._hang_at, self.requests = prefix, hang_at, 0

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        n: int = 1,
        traceparent: str | None = None,
        *,
        watch: Watch | None = None,
        trained: bool = False,
    ) -> list[Completion]:
        if self.requests == self._hang_at:
            await asyncio.Event().wait()
        self.answer = f"{self._prefix}{self.requests}"
        self.requests += 1
        return await super().generate(prompt_token_ids, sampling, n, traceparent, watch=watch, trained=trained)


class DyingProducer(Producer):
    async def send(self, topic: Topic, *args: Any, **kwargs: Any) -> Awaitable[Position]:
        sending = await super().send(topic, *args, **kwargs)
        if topic is EXPERIENCES:
            await sending
            os.kill(os.getpid(), signal.SIGKILL)
        return sending


class DyingBus(Bus):
    def producer(self, *, transactional_id: str | None = None) -> Producer:
        return DyingProducer(self.settings, client_id=self.client_id, transactional_id=transactional_id)


def engine_of(kind: str) -> ZeroCostEngine:
    if kind == "words":
        return WordsEngine(version=-1)
    if kind == "hangs":
        return CountingEngine("a", int(os.environ["HANG_AT"]))
    engine = FakeEngine(answer=os.environ.get("ANSWER", "") * int(os.environ.get("TIMES", "1")))
    if "ANSWER" not in os.environ:
        engine.open.clear()
    if "HANG_AFTER" in os.environ:
        engine.hang_after = int(os.environ["HANG_AFTER"])
    return engine


async def explore(settings: Settings, kind: str) -> None:
    bus_type = DyingBus if kind == "dies" else Bus
    with ForkServer(settings, tokenizer=TOKENIZER) as fork_server:
        async with bus_type(settings.kafka, client_id=settings.explorer.name) as bus:
            await bus.ensure_topics()
            await ExplorerService(settings, bus, engine_of(kind), fork_server).run()


def main(kind: str) -> None:
    """As the real explorer's: what goes wrong is one line."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        settings = Settings()
        run_service(lambda: explore(settings, kind))
    except TrinityError as error:
        sys.exit(f"explorer: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
