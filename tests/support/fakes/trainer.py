"""A FAKE trainer: reads finalized train batches in order, computes nothing, and says that a version can be had.

``python -m tests.support.fakes.trainer CHECKPOINT``, with the settings of the environment; to be killed. Like the real
one it goes on from its checkpoint, here a small file with the steps done and the position in ``batches``.
"""

import asyncio
import json
import logging
import sys
import uuid
from pathlib import Path
from typing import Any

from benchmarks._records import step_trained, trainer_beat
from schemas import BatchLifecycleState, BatchRecord
from schemas.topics import BATCHES, TRAINER_EVENTS
from tests.support.mesh.records import record_of
from trinity_bus.bus import Bus, Producer
from trinity_bus.config import Settings
from trinity_bus.errors import TrinityError
from trinity_bus.runtime.service import run_service

NAME = "trainer-0"
HEARTBEAT_S = 0.5


class Incarnation:
    def __init__(self, checkpoint: Path, producer: Producer) -> None:
        self._checkpoint = checkpoint
        self._producer = producer
        self._incarnation = uuid.uuid4().hex
        state: dict[str, Any] = (
            json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "offset": 0, "batch_id": None}
        )
        self.step: int = state["step"]
        self.offset: int = state["offset"]
        self.batch_id: str | None = state["batch_id"]
        """What the last step was taken on."""

    async def train(self, batch: BatchRecord, offset: int) -> None:
        if batch.state is BatchLifecycleState.FINALIZED and batch.batch_type == "train":
            if batch.sequence != self.step + 1:
                raise TrinityError(f"after step {self.step} comes a batch of sequence {batch.sequence}")
            self.step += 1
            self.batch_id = batch.batch_id
        self.offset = offset + 1
        half = self._checkpoint.with_suffix(".tmp")
        half.write_text(json.dumps({"step": self.step, "offset": self.offset, "batch_id": self.batch_id}))
        half.replace(self._checkpoint)

    async def publish(self) -> None:
        checksum = f"checksum-{self.step}"
        step = step_trained(self.step, self._incarnation, batch_id=self.batch_id, checksum=checksum)
        await (await self._producer.send(TRAINER_EVENTS, NAME, step))

    async def beat(self) -> None:
        while True:
            alive = trainer_beat(self.step, self._incarnation)
            await (await self._producer.send(TRAINER_EVENTS, NAME, alive))
            await asyncio.sleep(HEARTBEAT_S)


async def run(settings: Settings, checkpoint: Path) -> None:
    async with Bus(settings.kafka, client_id=NAME) as bus:
        await bus.ensure_topics()
        async with bus.producer() as producer:
            trainer = Incarnation(checkpoint, producer)
            start = {(BATCHES.name, 0): trainer.offset}
            async with bus.reader(BATCHES, start=start) as batches, asyncio.TaskGroup() as group:
                await trainer.publish()
                group.create_task(trainer.beat())
                while True:
                    for received in await batches.batch(1.0):
                        before = trainer.step
                        await trainer.train(record_of(received), received.offset)
                        if trainer.step > before:
                            await trainer.publish()


def main() -> None:
    """What goes wrong is one line."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        settings = Settings()
        run_service(lambda: run(settings, Path(sys.argv[1])))
    except TrinityError as error:
        sys.exit(f"trainer: {error}")


if __name__ == "__main__":
    main()
