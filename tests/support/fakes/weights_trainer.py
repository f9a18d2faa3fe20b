"""A FAKE trainer whose weights are real: it trains nothing, and explorers take each version from its memory."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from schemas.topics import MODEL_VERSIONS
from tests.support.fakes.workers import FakeTrainer
from tests.support.mesh.waiting import beside
from trinity_bus.bus import Bus, Producer
from trinity_bus.config import SynchronizerSettings, TrainerSettings
from workers.trainer.engines import make_publisher
from workers.trainer.version_publisher import ServedVersions


class WeightsTrainer(FakeTrainer):
    """Publishes what it is told to: of each version the weights in its folder."""

    def __init__(self, bus: Bus, models: Mapping[int, Path]) -> None:
        super().__init__(bus)
        self.models = models
        sync = SynchronizerSettings(sync_method="memory")
        self._publisher = make_publisher(TrainerSettings(bucket_mib=1), sync, Path(), "cpu")
        self._served = ServedVersions(self._publisher, model="policy", incarnation="trainer-life")

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncIterator["WeightsTrainer"]:
        with contextlib.closing(self._publisher):
            async with (
                self._bus.reader(MODEL_VERSIONS, start="beginning") as announced,
                super().alive(),
                beside(self._served.serve(announced)),
            ):
                yield self

    async def publish(self, producer: Producer, version: int) -> None:
        await self._tell(producer, version, publish=True)

    def offer(self, version: int) -> dict[str, Any]:
        checksum = self._publisher.stage(version, load_file(self.models[version] / "model.safetensors").items())
        self._served.add(version, checksum)
        host, port = self._publisher.address
        return {"checksum": checksum, "master_address": host, "master_port": port, "method": self._publisher.method}
