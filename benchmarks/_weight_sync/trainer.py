"""The trainer's part of the protocol, without training."""

import asyncio
import statistics
import time
import uuid

import torch

from benchmarks._children import Side
from benchmarks._records import step_trained, trainer_beat
from benchmarks._weight_sync.explorer import LIMIT_S
from schemas import ModelVersion, WeightsSynced
from schemas.topics import TRAINER_EVENTS
from trinity_bus.bus import Producer, Reader
from workers.trainer.engines import Publisher

type Round = dict[str, float]


class Trainer:
    def __init__(self, publisher: Publisher, producer: Producer, events: Reader, versions: Reader) -> None:
        self._publisher = publisher
        self._producer = producer
        self._events = events
        self._versions = versions
        self._incarnation = uuid.uuid4().hex
        self._version = -1
        self.announced_at = 0.0

    async def serve(self) -> None:
        while True:
            for received in await self._versions.batch(1.0):
                announced = received.record
                if isinstance(announced, ModelVersion) and announced.trainer_incarnation == self._incarnation:
                    self.announced_at = received.timestamp_ms / 1000
                    self._publisher.admit(announced)

    async def alive(self) -> None:
        while True:
            beat = trainer_beat(self._version, self._incarnation, self._publisher.address)
            await self._producer.send(TRAINER_EVENTS, "trainer-0", beat)
            await asyncio.sleep(0.5)

    async def step(self, tensors: dict[str, torch.Tensor], sides: list[Side]) -> Round:
        """Publish a version; the slowest explorer counts."""
        self._version += 1
        began_at = time.time()
        began = time.perf_counter()
        checksum = await asyncio.to_thread(self._publisher.stage, self._version, tensors.items())
        staged = time.perf_counter()
        told_at = time.time()
        where, own = self._publisher.address, {"method": self._publisher.method, "checksum": checksum}
        news = step_trained(self._version, self._incarnation, where, **own)
        await (await self._producer.send(TRAINER_EVENTS, "trainer-0", news))
        answers: dict[str, WeightsSynced] = {}
        last_at = 0.0
        while len(answers) < len(sides):
            batch = await self._events.batch(LIMIT_S)
            assert batch, f"nobody has said anything for {LIMIT_S:g} s"
            for received in batch:
                if isinstance(received.record, WeightsSynced) and received.record.version == self._version:
                    assert received.record.ok, received.record.error
                    assert received.record.checksum == checksum
                    answers[received.record.explorer] = received.record
                    last_at = max(last_at, received.timestamp_ms / 1000)
        first = statistics.median([await side.tell(("first",)) for side in sides])
        slowest = {
            name: max(getattr(answer, f"{name}_s") for answer in answers.values())
            for name in ("transfer", "verify", "prepare", "pause", "control")
        }
        return {
            **slowest,
            "total": last_at - began_at,
            "staging": staged - began,
            "meeting": slowest["control"],
            "control": first - self.announced_at,
            "news": first - told_at,
        }
