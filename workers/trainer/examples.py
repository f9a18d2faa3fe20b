"""The examples that a trainer learns from: which there are on the log, and those of a step as samples.

::

    UNKNOWN --settle--> reads the log until there are as many as are wanted --> KNOWN: the first so many that are any
    KNOWN   --chosen(seed, step)--> where those of a step lie, what is trained on, and what is left out

How many there are is settled once in a run: ``trainer.examples``, or as many as there were when the first step began,
which its record on ``steps`` and every checkpoint say.

Failures: a record that cannot be read is no example; it is a dead letter when a run begins. One that is gone when its
step comes ends the trainer with its place. An example that cannot be trained on is left out of its step.
"""

import asyncio
import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas import LeftOut, Position
from schemas.groups.trainable import Bounds
from schemas.step import MAX_WHY_CHARS
from schemas.topic import Topic
from schemas.topics import BATCHES, DEMONSTRATIONS, TRAINER_DEAD_LETTERS
from trinity_bus.bus import Bus, Producer, Received, Undecodable
from trinity_bus.chat.encoding import Writing, load_tokenizer
from trinity_bus.config import MeshSettings, TrainerSettings
from trinity_bus.errors import RecordGoneError
from trinity_bus.training.errors import TrainingError
from trinity_bus.training.families import read_shape
from trinity_bus.training.steps.examples import ExampleError, ExampleReader
from trinity_bus.training.steps.packing import TrainSample

log = logging.getLogger(__name__)

_POLL_S = 1.0


def example_reader(source: Path, own: TrainerSettings | MeshSettings) -> ExampleReader:
    shape = read_shape(source)
    writing = Writing(shape.max_positions, own.parse_special_tokens, own.renderer)
    tokenizer = load_tokenizer(str(source), how=writing)
    return ExampleReader.of(tokenizer, Bounds(shape.vocabulary, shape.max_positions))


async def examples_of(
    settings: TrainerSettings, topic: Topic, source: Path, *, bus: Bus, producer: Producer
) -> "ExampleLog | None":
    if topic is BATCHES and settings.strategy != "mix":
        return None
    reader = await asyncio.to_thread(example_reader, source, settings)
    shown = DEMONSTRATIONS if topic is BATCHES else topic
    return ExampleLog(shown, settings, reader, bus=bus, producer=producer)


@dataclass(frozen=True, slots=True)
class Chosen:
    positions: list[Position] = field(default_factory=list)
    samples: list[TrainSample] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


class ExampleLog:
    def __init__(
        self, topic: Topic, settings: TrainerSettings, reader: ExampleReader, *, bus: Bus, producer: Producer
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._reader = reader
        self._bus = bus
        self._producer = producer
        # Of all examples, 8 bytes each: they themselves stay on the log
        self._offsets = array("q")

    @property
    def count(self) -> int:
        """0 before it is settled."""
        return len(self._offsets)

    async def settle(self, known: int) -> None:
        wanted = known or self._settings.examples
        async with self._bus.reader(self._topic, start="beginning") as reader:
            async for received in reader.replay():
                await self._take(received, tell=not known)
            if self.count < (wanted or 1):
                log.info("waiting for %s: there are %d, %d are wanted", self._topic.name, self.count, wanted or 1)
            while self.count < (wanted or 1):
                for received in await reader.batch(_POLL_S):
                    await self._take(received, tell=not known)
        del self._offsets[wanted or len(self._offsets) :]
        log.info("learning from %d %s", self.count, self._topic.name)

    async def _take(self, received: Received[Any], *, tell: bool) -> None:
        if not isinstance(received.record, Undecodable):
            self._offsets.append(received.offset)
        elif tell:
            reason, detail = received.record.reason, received.record.detail
            log.warning("%s is no example (%s: %s)", received.place, reason, detail)
            await self._producer.send_dead_letter(received, reason, detail, to=TRAINER_DEAD_LETTERS)

    async def chosen(self, *, seed: int, step: int) -> Chosen:
        places = chosen(self.count, self._settings.examples_per_step, seed=seed, step=step)
        return await self.at([Position(partition=0, offset=self._offsets[place]) for place in places])

    async def at(self, positions: list[Position]) -> Chosen:
        """TrainingError where one is gone."""
        try:
            fetched = await self._bus.fetch(self._topic, positions)
        except RecordGoneError as error:
            raise TrainingError(
                f"an example of {self._topic.name} is gone: {error}; produce them anew in a namespace of their own"
            ) from error
        for received in fetched:
            if isinstance(received.record, Undecodable):
                raise TrainingError(f"{received.place} was an example when its step began, and cannot be read any more")
        samples, left = await asyncio.to_thread(self._read, [received.record for received in fetched])
        return Chosen(positions, samples, left)

    def _read(self, examples: Sequence[Any]) -> tuple[list[TrainSample], list[LeftOut]]:
        samples: list[TrainSample] = []
        left: list[LeftOut] = []
        for pair, example in enumerate(examples):
            try:
                samples += self._reader.samples(example, pair=pair)
            except ExampleError as error:
                detail = str(error)[:MAX_WHY_CHARS]
                left.append(LeftOut(task_id=example.example_id, reason=error.flaw, samples=[0], detail=detail))
        return samples, left


def chosen(count: int, per_step: int, *, seed: int, step: int) -> list[int]:
    """Return the places of the examples of a step, which counts from 1. Pure.

    Epochs follow one another; each has every example once, in an order of its own. Of 5 examples, 2 a step, step 3
    takes the last of one epoch and the first of the next.
    """
    first = (step - 1) * per_step
    places: list[int] = []
    while len(places) < per_step:
        epoch, begin = divmod(first + len(places), count)
        places += _order(count, seed, epoch)[begin : begin + per_step - len(places)].tolist()
    return places


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(count)
