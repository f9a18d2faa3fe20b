"""The trainer's side with a FAKE trainer: takes what counts, in its order, and checkpoints its position.

::

    checkpoint --> batches, from its position on --> fetch what each manifest names --> wait as long as a step takes
         ^                                                                                      |
         '---- every CHECKPOINT_EVERY steps, in one atomic rename <-----------------------------+--> events: StepTrained

Killed anywhere, its next incarnation goes on from the newest checkpoint, with the versions and the batches that follow
it. ``python -m benchmarks._scheduling.consumer FOLDER [SECONDS EVERY]``, with the settings of the environment; tests of
other meshes run it too, with steps that take no time.
"""

import asyncio
import json
import logging
import sys
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks._records import step_trained, trainer_beat
from schemas import BatchLifecycleState, BatchRecord
from schemas.topics import BATCHES, EXPERIENCES, TRAINER_EVENTS
from trinity_bus.bus import Bus, Producer
from trinity_bus.config import Settings
from trinity_bus.errors import TrinityError
from trinity_bus.runtime.service import run_service

TRAIN_S = 0.8
CHECKPOINT_EVERY = 5
_BEAT_S = 0.5


@dataclass(frozen=True, slots=True)
class Step:
    """A line of the log that is kept for the accounting; and the content of a checkpoint."""

    step: int
    offset: int
    """In ``batches``, to read next."""
    at: float
    batch_id: str
    tasks: tuple[str, ...] = ()
    is_checkpoint: bool = False


class Consumer:
    def __init__(self, bus: Bus, folder: Path, train_s: float, every: int) -> None:
        self._bus = bus
        self._checkpoint = folder / "checkpoint.json"
        self._log = folder / "steps.jsonl"
        self._train_s, self._every = train_s, every
        self._incarnation = uuid.uuid4().hex
        self._step, self._offset = 0, 0
        self._batch_id: str | None = None
        if self._checkpoint.exists():
            kept = json.loads(self._checkpoint.read_text())
            self._step, self._offset, self._batch_id = kept["step"], kept["offset"], kept["batch_id"]

    async def run(self) -> None:
        start = {(BATCHES.name, 0): self._offset}
        async with (
            self._bus.producer() as producer,
            self._bus.reader(BATCHES, start=start) as batches,
            asyncio.TaskGroup() as group,
        ):
            await self._publish(producer)
            group.create_task(self._beat(producer))
            while True:
                for received in await batches.batch(1.0):
                    batch = received.record
                    if not isinstance(batch, BatchRecord) or batch.batch_type != "train":
                        continue
                    if batch.state is BatchLifecycleState.FINALIZED:
                        await self._train(batch, received.offset + 1)
                        await self._publish(producer)

    async def _train(self, batch: BatchRecord, offset: int) -> None:
        if batch.sequence != self._step + 1:
            raise TrinityError(f"after step {self._step} comes a batch of sequence {batch.sequence}")
        parts = [part for entry in batch.manifest for part in entry.parts]
        await self._bus.fetch(EXPERIENCES, [part.position for part in parts if part.position is not None])
        await asyncio.sleep(self._train_s)
        self._step, self._offset, self._batch_id = self._step + 1, offset, batch.batch_id
        tasks = tuple(entry.task_id for entry in batch.manifest)
        is_checkpoint = self._step % self._every == 0
        line = json.dumps(asdict(Step(self._step, offset, time.time(), batch.batch_id, tasks, is_checkpoint)))
        if is_checkpoint:
            new = self._checkpoint.with_suffix(".new")
            new.write_text(line)
            new.replace(self._checkpoint)
        with self._log.open("a") as log:
            log.write(line + "\n")

    async def _publish(self, producer: Producer) -> None:
        step = step_trained(self._step, self._incarnation, batch_id=self._batch_id)
        await (await producer.send(TRAINER_EVENTS, step.trainer, step))

    async def _beat(self, producer: Producer) -> None:
        while True:
            beat = trainer_beat(self._step, self._incarnation)
            await (await producer.send(TRAINER_EVENTS, beat.trainer, beat))
            await asyncio.sleep(_BEAT_S)


def steps_of(folder: Path) -> list[Step]:
    log = folder / "steps.jsonl"
    if not log.exists():
        return []
    # An incarnation that is killed may leave half a line.
    lines = [line for line in log.read_text().splitlines() if line.endswith("}")]
    return [Step(**{**json.loads(line), "tasks": tuple(json.loads(line)["tasks"])}) for line in lines]


async def run(settings: Settings, folder: Path, train_s: float = TRAIN_S, every: int = CHECKPOINT_EVERY) -> None:
    async with Bus(settings.kafka, client_id="trainer-0") as bus:
        await bus.ensure_topics()
        await Consumer(bus, folder, train_s, every).run()


def main(folder: str, train_s: str = str(TRAIN_S), every: str = str(CHECKPOINT_EVERY)) -> None:
    """As the real trainer's: what goes wrong is one line."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        settings = Settings()
        run_service(lambda: run(settings, Path(folder), float(train_s), int(every)))
    except TrinityError as error:
        sys.exit(f"trainer: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
