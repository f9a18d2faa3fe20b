"""The coordinator's process: reads, lets the machine decide, commits; again and again.

::

    start:  topics --> fence predecessors --> read the changelog to its end --> read on from where it says
    loop:   tasks, commands, events --> CoordinatorMachine --> ONE transaction: rollouts, batches, results, replies,
                                                     model-versions, dead-letters, changelog, input positions

Every loop either commits all of it or nothing. Killed at any point, a successor repeats exactly what was not committed.
There may be several coordinators by accident: starting one fences the others by the transactional id
``<namespace>.coordinator``, and a fenced one can write nothing and ends.

==============================  =======================================================================================
what fails                      what happens
==============================  =======================================================================================
a record cannot be decoded      a dead letter, in the same transaction
the transaction fails           the process ends with the error; nothing of it counts; a supervisor starts it anew
another coordinator starts      ``ProducerFencedError``: the process ends and says so
too many tasks are open         tasks are not read any more until some have ended; the log holds them
records lost to retention       they are skipped, with an error in the log
==============================  =======================================================================================
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from schemas import (
    AbortBatch,
    CancelTasks,
    CoordinatorHeartbeat,
    FinalizeBatch,
    PublishVersion,
    RunnersReport,
    SubmitBatch,
    Task,
    VersionWanted,
)
from schemas.topics import COMMANDS, EVENTS, TASKS
from trinity_bus.bus import Bus, Producer, Reader, Received, Undecodable
from trinity_bus.config import Settings
from trinity_bus.coordination import CommandArrived, CoordinatorMachine, EventArrived, Input, Origin, TaskArrived, Tick
from trinity_bus.errors import ProducerFencedError
from trinity_bus.telemetry import setup_telemetry, traceparent
from workers.coordinator import changelog, observations
from workers.coordinator.outputs import Outputs
from workers.coordinator.spans import Spans, sound

log = logging.getLogger("workers.coordinator")

TRANSACTIONAL_ID = "coordinator"
INPUTS = (TASKS, COMMANDS, EVENTS)
REQUESTS = (SubmitBatch, FinalizeBatch, AbortBatch, CancelTasks, PublishVersion)
FOR_OTHERS = (RunnersReport, CoordinatorHeartbeat, VersionWanted)
"""Events that are for people, or the trainer, to look at."""
MAX_RECORDS = 1000
"""Most records of one transaction."""
POSITIONS_EVERY_S = 1.0
"""How often positions are committed under the consumer group, while records come. Also how soon records that change
nothing (heartbeats, mostly) are marked as read, and how soon a coordinator that was replaced meanwhile finds out."""


async def run(settings: Settings) -> None:
    """Runs a coordinator until it is cancelled.

    Raises:
        ProducerFencedError: Another coordinator of this namespace has started.
        StateError: The changelog cannot be read by this program.
        TrinityError: The broker cannot be reached, or something is wrong with its topics.
    """
    telemetry = setup_telemetry("coordinator", settings.telemetry, namespace=settings.kafka.namespace)
    try:
        async with Bus(settings.kafka, client_id="coordinator") as bus:
            await Coordinator(settings, bus).run()
    finally:
        telemetry.shutdown()


class Coordinator:
    """One coordinator over a connected bus.

    Args:
        settings: All settings; the ``kafka`` and ``coordinator`` sections are used.
        bus: Connected.
        clock: Seconds, steady.
    """

    def __init__(self, settings: Settings, bus: Bus, clock: Callable[[], float] = time.monotonic) -> None:
        self.machine = CoordinatorMachine(settings.coordinator, settings.synchronizer)
        self._namespace = settings.kafka.namespace
        self._tick_s = settings.coordinator.tick_s
        self._bus = bus
        self._clock = clock
        self._positions: changelog.Positions = {}
        self._has_unmarked = False
        """Whether records were read whose positions are not committed under the group."""
        self._marked_at = clock()
        self._ticked_at = clock()
        self._paused = False

    async def run(self) -> None:
        """Takes over from any predecessor, and works until cancelled.

        Raises:
            ProducerFencedError: Another coordinator has taken over from this one.
        """
        await self._bus.ensure_topics()
        try:
            # Its start fences predecessors, so that the changelog is complete when it is read.
            async with self._bus.producer(transactional_id=TRANSACTIONAL_ID) as producer:
                await self._restore()
                observations.watch(self.machine)
                async with self._bus.reader(*INPUTS, start=self._positions, max_records=MAX_RECORDS) as reader:
                    log.info("ready")
                    while True:
                        await self._step(producer, reader)
        except ProducerFencedError as error:
            raise ProducerFencedError(
                f"another coordinator of namespace {self._namespace!r} has started; this one stops"
            ) from error

    async def _restore(self) -> None:
        started = self._clock()
        committed, count = await changelog.restore(self._bus, self.machine)
        self._positions, lost = await changelog.readable(self._bus, INPUTS, committed)
        if lost:
            log.error("%d tasks, commands and events were deleted by retention before they were read", lost)
        log.info("restored from %d changelog records in %.3f s", count, self._clock() - started)

    async def _step(self, producer: Producer, reader: Reader) -> None:
        """One loop: waits for records, until the next tick at most; decides; commits."""
        received = await reader.batch(max(0.0, self._ticked_at + self._tick_s - self._clock()))
        now = self._clock()
        with Spans(self._namespace) as spans:
            unreadable = [item for item in received if isinstance(item.record, Undecodable)]
            inputs = self._inputs(received, now, spans)
            commands = self.machine.handle_all(inputs, now)
            changes = self.machine.changes()
            for item in received:
                self._positions[item.topic.name, item.partition] = item.offset + 1
                self._has_unmarked = True
            due = self._has_unmarked and now >= self._marked_at + POSITIONS_EVERY_S
            if commands or changes or unreadable or due:
                originals = {Origin(i.partition, i.offset): i for i in received if i.topic is TASKS}
                async with producer.transaction():
                    outputs = Outputs(producer)
                    await outputs.refuse(unreadable)
                    await outputs.carry_out(commands, originals, spans)
                    await outputs.record_changes(changes, self._positions)
                    if due:
                        await outputs.show_progress(self._positions, group=f"{self._namespace}.{TRANSACTIONAL_ID}")
                        self._has_unmarked, self._marked_at = False, now
                observations.LATENCY.record(self._clock() - now)
        self._throttle(reader)

    def _inputs(self, received: list[Received[Any]], now: float, spans: Spans) -> list[Input]:
        inputs: list[Input] = []
        for item in received:
            if isinstance(item.record, Undecodable):
                continue
            if isinstance(item.record, Task):
                span = spans.process(item, item.record)
                context = sound(item.traceparent) or traceparent(span)
                inputs.append(TaskArrived(item.record, Origin(item.partition, item.offset), context))
            elif isinstance(item.record, REQUESTS):
                inputs.append(CommandArrived(item.record, sound(item.traceparent)))
            elif not isinstance(item.record, FOR_OTHERS):
                inputs.append(EventArrived(item.record, sound(item.traceparent)))
        if now >= self._ticked_at + self._tick_s:
            self._ticked_at = now
            inputs.append(Tick())
        return inputs

    def _throttle(self, reader: Reader) -> None:
        """Stops or resumes the reading of tasks."""
        wants = self.machine.wants_tasks()
        if wants == self._paused:
            (reader.resume if wants else reader.pause)(TASKS)
            self._paused = not wants
