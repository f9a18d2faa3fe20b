"""A trainer on batches from its start to its last step: what it announces, in which order. Engine and log are fakes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from schemas import BatchRecord, BatchSkipped, StepBegun, StepTrained
from schemas.topic import Topic
from schemas.topics import BATCHES, STEPS
from tests.support.fakes.received import durable, received
from tests.support.fakes.tiny_trainer import write_model
from tests.support.fakes.trainer_context import context_of
from tests.unit.trainer.test_batch_steps import batch
from tests.unit.trainer.test_version_publisher import Engine, Publisher
from trinity_bus.bus import Received
from trinity_bus.config import Settings, TrainerSettings
from trinity_bus.training import checkpoint
from workers.preconditions import sync_policy
from workers.trainer.engines import EngineThread
from workers.trainer.figure_log import FigureLog
from workers.trainer.loops import Trainer
from workers.trainer.step_log import StepLog


class Trains(Engine):
    """Each step adds 1 to its count."""

    def __init__(self, source: Path) -> None:
        super().__init__()
        self.source = source
        self._loop, self.exported = asyncio.get_running_loop(), asyncio.Event()

    def train_step(self, _groups: Any, *, seed: int, examples: Any) -> dict[str, float]:
        del seed, examples
        step = self.progress.step + 1
        self.progress = self.progress.model_copy(update={"step": step, "version": step})
        return {"loss": 0.5, "samples_trained": 0.0, "trained_tokens": 0.0, "updates_skipped_in_a_row": 0.0}

    def export_hf(self, _target: Path) -> None:
        self._loop.call_soon_threadsafe(self.exported.set)

    def take_figures(self) -> list[Any]:
        return []


class FakeReader:
    """Its records, then nothing more, for ever."""

    def __init__(self, records: list[Any], topic: Topic) -> None:
        self._records = [received(record, topic, offset) for offset, record in enumerate(records)]

    async def replay(self) -> AsyncIterator[Received[Any]]:
        for each in self._records:
            yield each

    async def batch(self, _timeout_s: float) -> list[Received[Any]]:
        await asyncio.Event().wait()
        return []

    async def keeps_up(self) -> bool:
        return True


class FakeBus:
    """Has batches, and keeps what is sent."""

    def __init__(self, *batches: BatchRecord | BatchSkipped) -> None:
        self._batches = list(batches)
        self.sent: list[Any] = []

    @contextlib.asynccontextmanager
    async def reader(self, topic: Topic, **_: Any) -> AsyncIterator[FakeReader]:
        yield FakeReader(self._batches if topic is BATCHES else [], topic)

    async def end_offsets(self, _topic: Topic) -> dict[int, int]:
        return {0: 99}

    async def send(self, topic: Topic, _key: str, record: Any) -> "asyncio.Future[None]":
        if topic is STEPS or isinstance(record, StepTrained):
            self.sent.append(record)
        return durable()


@pytest.mark.parametrize("publish", ["durable", "staged"])
async def test_batches_are_trained_in_their_order_and_announced(tmp_path: Path, publish: str) -> None:
    skip = BatchSkipped(batch_id="batch-2", sequence=2, reason="poison", client="operator")
    bus = FakeBus(batch(1, None), batch(2, None), skip, batch(3, None))
    trainer = TrainerSettings(
        total_steps=3, publish=cast("Any", publish), checkpoint_interval=2, export_dir=tmp_path / "export"
    )
    settings = Settings().model_copy(update={"trainer": trainer})
    engine = Trains(write_model(tmp_path / "model"))
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    async with EngineThread() as thread:
        running = asyncio.create_task(
            Trainer(
                context_of(
                    trainer,
                    directory=directory,
                    thread=thread,
                    steps=StepLog("trainer-0", "run-1", 0, bus=cast("Any", bus), producer=cast("Any", bus)),
                    figures=FigureLog(cast("Any", bus)),
                    bus=bus,
                    producer=bus,
                    engine=engine,
                ),
                sync_policy(settings),
                rollback=None,
                publisher=cast("Any", Publisher([])),
            ).run()
        )
        await asyncio.wait([running, asyncio.create_task(engine.exported.wait())], return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    begun = [record for record in bus.sent if isinstance(record, StepBegun)]
    assert [(record.batch_id, record.next_offset, record.skipped) for record in begun] == [
        ("batch-1", 1, None), ("batch-2", 2, "poison"), ("batch-3", 4, None)
    ]  # fmt: skip
    told = [record for record in bus.sent if isinstance(record, StepTrained)]
    assert [(record.step, record.batch_id, record.publish) for record in told] == [
        (0, None, True), (1, "batch-1", True), (2, "batch-2", True), (3, "batch-3", True)
    ]  # fmt: skip
    assert [skipped.batch_id for skipped in told[-1].skipped] == ["batch-2"]
    assert engine.progress.batches_offset == 4
    assert engine.progress.sequence == 3
    assert 3 in checkpoint.steps(directory)
