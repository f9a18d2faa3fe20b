"""An explorer's process around a FAKE engine that costs nothing: every prompt is answered at once with one token.

All else is the real service: its lane, its workflows, its experiences and events, with the settings of the environment.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence

from schemas import Member, ModelVersion, Sampling
from schemas.groups.trainable import Bounds
from trinity_bus.bus import Bus
from trinity_bus.chat.messages import Completion
from trinity_bus.config import Settings
from trinity_bus.inference.completion import Watch
from trinity_bus.inference.concurrency import EngineLoad, Steps
from trinity_bus.inference.errors import EngineDeadError
from trinity_bus.inference.weight_sync import SyncOutcome
from trinity_bus.runners.fork_server import ForkServer
from trinity_bus.runtime.memory import freeze_gc
from trinity_bus.runtime.service import run_service
from trinity_bus.telemetry import setup_telemetry
from workers.explorer.service import ExplorerService

THINK_S = "TRINITY_BENCH_THINK_S"
"""Environment variable: seconds that the engine pretends to think about each prompt."""


class ZeroCostEngine:
    """Draws the token of ``4`` without computing anything. A token is a character."""

    def __init__(self, *, version: int = 0, think_s: float = 0.0) -> None:
        self.bounds = Bounds(vocabulary=0x110000, positions=1 << 20)
        self.model_version = version
        self.tells_versions = True
        self.tokens_generated = 0
        self.steps = Steps()
        self.load: EngineLoad | None = None
        self._think_s = think_s
        self.death: asyncio.Future[EngineDeadError] = asyncio.get_running_loop().create_future()

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
        del prompt_token_ids, sampling, traceparent, watch, trained
        if self._think_s:
            await asyncio.sleep(self._think_s)
        self.tokens_generated += n
        return [Completion([ord("4")], [-0.5], "stop", [(0, self.model_version)])] * n

    async def stream(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        n: int = 1,
        traceparent: str | None = None,
        *,
        trained: bool = False,
    ) -> AsyncGenerator[tuple[int, Completion]]:
        del trained
        for i, one in enumerate(await self.generate(prompt_token_ids, sampling, n, traceparent)):
            yield i, one

    async def sync_weights(self, announced: ModelVersion, member: Member) -> SyncOutcome:
        del member
        self.model_version = announced.version
        return SyncOutcome(announced.checksum, 0.0, 0.0, 0.0)

    async def score(self, token_ids: Sequence[int], start: int) -> list[float]:
        return [0.0] * (len(token_ids) - start)

    async def wait_dead(self) -> EngineDeadError:
        return await asyncio.shield(self.death)


async def run(settings: Settings) -> None:
    with ForkServer(settings, tokenizer="benchmarks._scheduling.tokenizer:load") as fork_server:
        telemetry = setup_telemetry("explorer", settings.telemetry, namespace=settings.kafka.namespace)
        async with Bus(settings.kafka, client_id=settings.explorer.name) as bus:
            engine = ZeroCostEngine(think_s=float(os.environ.get(THINK_S, "0")))
            freeze_gc()
            await ExplorerService(settings, bus, engine, fork_server).run()
        telemetry.shutdown()


if __name__ == "__main__":
    configured = Settings()
    run_service(lambda: run(configured))
