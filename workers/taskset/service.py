"""The taskset service: keeps the mesh supplied with tasks of task sets, and examines versions with others.

::

    start:  read the files -> fence an earlier incarnation -> its last position, from `tasksets`
    loop:   ONE transaction: train tasks for which there is room, an evaluation where one is due, the position
            wait: results and dead letters end tasks; model versions make evaluations due
    end:    all epochs are produced and every task has ended; or SIGTERM

A transaction commits tasks and position together, so no line is used twice or left out, whatever dies when. What is
produced ahead is bounded, so the order of training stays close to the order of the file's epochs, and a stop is soon.

==============================  =======================================================================================
what fails                      what happens
==============================  =======================================================================================
a file has a bad row            the process ends before anything runs, with file, row and reason
the dataset was changed         likewise: what was produced counts another order
another taskset of this name    the earlier one is fenced: it writes nothing more and ends
the broker                      it waits, and after ``kafka.outage_s`` the process ends with one line
the transaction                 the process ends with the error; nothing of it counts; a supervisor starts it anew
results were lost to retention  said in the log; their tasks count as ended
==============================  =======================================================================================

Results are read from where the last committed position says, so each is counted once over all incarnations of the
taskset. A task that is refused has no result but a dead letter; that ends it too, or a dataset with a wrong workflow
name would wait for ever.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from schemas import ModelVersion, Position, TaskResult, TasksetPosition
from schemas.topic import Topic
from schemas.topics import DEAD_LETTERS, MODEL_VERSIONS, RESULTS, TASKS, TASKSETS
from trinity_bus.bus import Bus, Producer, Reader
from trinity_bus.bus.read.offsets import readable
from trinity_bus.client import producer_name, sent_by
from trinity_bus.config import Settings, TasksetSettings
from trinity_bus.errors import ProducerFencedError
from trinity_bus.health.process import mark_ready, watching
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry import setup_telemetry
from trinity_bus.telemetry.metrics import RECORDS_LOST
from workers.preconditions import dataset, ensure
from workers.taskset.dataset import Dataset, TaskSets, load
from workers.taskset.description import DatasetError

type Offsets = dict[int, int]  # partition to the offset to read next


class TasksetProgress:
    """The state of one taskset, from the position that was committed last, by this or an earlier incarnation.

    DatasetError: that position counts the lines of another dataset, or there is no end of what has epochs.
    """

    def __init__(self, own: TasksetSettings, dataset: Dataset, last: TasksetPosition | None) -> None:
        last = last or TasksetPosition(taskset=own.name, fingerprint=dataset.fingerprint)
        if last.fingerprint != dataset.fingerprint:
            raise DatasetError(
                f"taskset {own.name!r} has produced {last.produced} tasks of another dataset or in another order; give "
                "this one a name of its own (TRINITY_BUS_TASKSET__NAME)"
            )
        if own.epochs is not None and dataset.size is None:
            raise DatasetError(f"taskset {own.name!r} has no end, and so no epochs: leave taskset.epochs unset")
        self.produced, self.ended, self.examined = last.produced, last.ended, last.examined
        self.results, self.dead_letters = _offsets(last.results), _offsets(last.dead_letters)
        self._own = own
        self._name = own.name
        self._dataset = dataset
        self._total = None if own.epochs is None or dataset.size is None else own.epochs * dataset.size

    @property
    def room(self) -> int:
        free = max(0, self._own.ahead - (self.produced - self.ended))
        return free if self._total is None else min(free, self._total - self.produced)

    @property
    def done(self) -> bool:
        return self._total is not None and self.ended >= self._total

    def is_ours(self, task_id: str | None) -> bool:
        prefix = f"{self._name}/"
        return task_id is not None and task_id.startswith(prefix) and task_id[len(prefix) :].partition("/")[0].isdigit()

    def read_result(self, task_id: str, partition: int, offset: int, reward: float | None = None) -> None:
        self.results[partition] = offset + 1
        self.ended += self.is_ours(task_id)
        self.learn(task_id, reward)

    def learn(self, task_id: str, reward: float | None) -> None:
        """Note how a task was answered, for orders that go by it; to hear it again changes nothing."""
        if reward is not None and self.is_ours(task_id):
            self._dataset.saw(task_id.removeprefix(f"{self._name}/").partition("/")[2], reward)

    def read_dead_letter(self, key: str | None, partition: int, offset: int) -> None:
        """Note that a dead letter was read; that of a task has its key."""
        self.dead_letters[partition] = offset + 1
        self.ended += self.is_ours(key)

    def is_eval_due(self, version: int) -> bool:
        return version > self.examined and version % self._own.eval_interval == 0

    def position(self) -> TasksetPosition:
        return TasksetPosition(
            taskset=self._name,
            fingerprint=self._dataset.fingerprint,
            produced=self.produced,
            ended=self.ended,
            examined=self.examined,
            results=_positions(self.results),
            dead_letters=_positions(self.dead_letters),
        )


def _offsets(positions: Iterable[Position]) -> Offsets:
    return {position.partition: position.offset for position in positions}


def _positions(offsets: Mapping[int, int]) -> list[Position]:
    return [Position(partition=partition, offset=offset) for partition, offset in sorted(offsets.items())]


log = logging.getLogger("workers.taskset")

_MOST_TASKS: Final = 500  # train tasks of one transaction
_POLL_S: Final = 1.0


async def run(settings: Settings) -> None:
    """Produce until all epochs are answered or it is cancelled. Its errors are those of the table above."""
    own = settings.taskset
    ensure("taskset", settings)
    sets = load(dataset(settings), taskset=own.name, seed=own.seed, order=own.order)
    telemetry = setup_telemetry("taskset", settings.telemetry, namespace=settings.kafka.namespace, instance=own.name)
    try:
        async with Bus(settings.kafka, client_id=own.name, patient=True) as bus:
            await bus.ensure_topics()
            await Taskset(settings, bus, sets).run()
    finally:
        telemetry.shutdown()


class Taskset:
    """One taskset over a connected bus; DatasetError where there is nothing to train on."""

    def __init__(self, settings: Settings, bus: Bus, sets: TaskSets) -> None:
        if sets.train is None:
            raise DatasetError(f"{settings.taskset.path} has nothing to train on: no [[train]]")
        self._settings = settings.taskset
        self._model = settings.mesh.model
        self._bus = bus
        self._train = sets.train
        self._evals = sets.evals
        self._newest = -1  # the newest model version

    async def run(self) -> None:
        """Work until done or cancelled; ProducerFencedError where another taskset of this name has started."""
        name = self._settings.name
        try:
            # Its start fences an earlier incarnation, so that the position is the last one when it is read.
            async with self._bus.producer(transactional_id=f"taskset.{name}") as producer:
                progress = TasksetProgress(self._settings, self._train, await self._last_position())
                await self._place(progress)
                await self._learn(progress)
                await self._work(producer, progress)
        except ProducerFencedError as error:
            raise ProducerFencedError(f"another taskset {name!r} has started; this one stops") from error

    async def _last_position(self) -> TasksetPosition | None:
        last = None
        async with self._bus.reader(TASKSETS, start="beginning") as reader:
            async for received in reader.replay():
                if received.key == self._settings.name and isinstance(received.record, TasksetPosition):
                    last = received.record
        return last

    async def _learn(self, progress: TasksetProgress) -> None:
        """Hear again how rows were answered, as far as the log goes back, for an order that goes by it."""
        if not self._train.lines:
            return
        async with self._bus.reader(RESULTS, start="beginning") as reader:
            async for received in reader.replay():
                if isinstance(received.record, TaskResult):
                    progress.learn(received.record.task_id, received.record.metrics.get("reward"))

    async def _place(self, progress: TasksetProgress) -> None:
        """Fix where answers are read from: at the first start from now on, later past what retention deleted."""
        for topic, offsets in ((RESULTS, progress.results), (DEAD_LETTERS, progress.dead_letters)):
            if not offsets:
                offsets.update(await self._bus.end_offsets(topic))
            found = await readable(self._bus, [topic], _start(topic, offsets))
            offsets.update({partition: offset for (_, partition), offset in found.positions.items()})
            if found.lost:
                RECORDS_LOST.add(found.lost, {names.MESSAGING_DESTINATION_TEMPLATE: topic.name})
                log.error("%d records of %s were deleted by retention before they were read", found.lost, topic.name)
            for beyond in found.beyond:
                log.error("%s: answers may be lost; reading goes on with what comes", beyond)
            if found.lost or found.beyond:
                progress.ended = progress.produced

    async def _work(self, producer: Producer, progress: TasksetProgress) -> None:
        answers = {**_start(RESULTS, progress.results), **_start(DEAD_LETTERS, progress.dead_letters)}
        async with (
            self._bus.reader(RESULTS, DEAD_LETTERS, start=answers) as reader,
            self._bus.reader(MODEL_VERSIONS, start="beginning") as versions,
        ):
            with watching("the answers", reader.keeps_up), watching("model-versions", versions.keeps_up):
                mark_ready()
                log.info("ready: %s rows, %d tasks produced so far", self._train.size or "endless", progress.produced)
                while not progress.done:
                    await self._produce(producer, progress)
                    await self._listen(reader, versions, progress)
        log.info("all %d tasks have been answered", progress.ended)

    async def _listen(self, reader: Reader, versions: Reader, progress: TasksetProgress) -> None:
        """Wait until something has ended, a version has come, or a while has passed."""
        for received in await reader.batch(_POLL_S):
            if received.topic is DEAD_LETTERS:
                progress.read_dead_letter(received.key, received.partition, received.last_offset)
            else:
                result = received.record if isinstance(received.record, TaskResult) else None
                task_id, reward = ("", None) if result is None else (result.task_id, result.metrics.get("reward"))
                progress.read_result(task_id, received.partition, received.last_offset, reward)
        for received in await versions.batch(0.0):
            record = received.record
            if isinstance(record, ModelVersion) and record.model == self._model:
                self._newest = record.version

    async def _produce(self, producer: Producer, progress: TasksetProgress) -> None:
        count = min(progress.room, _MOST_TASKS)
        evaluate = bool(self._evals) and self._newest >= 0 and progress.is_eval_due(self._newest)
        if not count and not evaluate:
            return
        tasks = [self._train.task(self._settings.name, progress.produced + i) for i in range(count)]
        if evaluate:
            for evaluated in self._evals:
                tasks += evaluated.of_version(self._settings.name, self._newest)
            progress.examined = self._newest
        progress.produced += count
        position = progress.position()
        async with producer.transaction():
            for task in sent_by(producer_name(self._bus.settings, self._settings.name), tasks):
                await producer.send(TASKS, task.task_id, task)
            await producer.send(TASKSETS, position.taskset, position)
        log.debug("produced %d tasks", len(tasks))


def _start(topic: Topic, offsets: Mapping[int, int]) -> dict[tuple[str, int], int]:
    return {(topic.name, partition): offset for partition, offset in offsets.items()}
