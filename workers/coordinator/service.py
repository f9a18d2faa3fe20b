"""The coordinator's process: reads, lets the machine decide, commits; again and again. Any number may run, one works.

::

    start:  topics --> STAND BY until nobody else works --> take over: fence, read the changelog to its end
    loop:   tasks, commands, events --> CoordinatorMachine --> ONE transaction: rollouts, batches, results, replies,
                                                     model-versions, dead-letters, changelog, input positions
            what comes while it is committed is decided meanwhile, and goes into the next one,
            which waits a little for more if there is nothing in it that anybody waits for;
            where that takes long, the broker is away, and time stands still until it is back
    every heartbeat_s, in such a transaction: that it works (changelog), and its figures (coordinator-events)
    stop:   the changelog says that it has left, so that another one takes over at once

A transaction commits all that was decided since the last one or nothing, and there is one at a time. Killed at any
point, a successor repeats exactly what was not committed.
That only one works at a time is kept by the broker: whoever takes over fences the others by the transactional id
``<namespace>.coordinator``, and a fenced one can write nothing. See :mod:`trinity_bus.coordination.leadership`.

==============================  =======================================================================================
what fails                      what happens
==============================  =======================================================================================
a record cannot be decoded      a dead letter, in the same transaction
a record upsets the machine     a dead letter, and all is as it was: see :mod:`workers.coordinator.upset`
the broker is away for a while  the open transaction waits for it, see :mod:`trinity_bus.bus.producer`
the transaction fails           nothing of it counts; the machine is forgotten, and this process stands by again: if
                                nobody has taken over meanwhile, it goes on from the last commit itself
the broker is away for longer   after ``kafka.outage_s`` the process ends and says so
it was stopped, and another     ``ProducerFencedError``: the process ends and says so
one has taken over
too many tasks are open, or     tasks are not read any more until some have ended; the log holds them
too many bytes of them
a position beyond the log's     :mod:`workers.coordinator.beyond` has the rule; where tasks may be lost, it waits for
end                             the operator to decide
records lost to retention       they are skipped, with an error in the log; an experience that is gone before its batch
                                ends makes its task a failed one
==============================  =======================================================================================
"""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from schemas import (
    AbortBatch,
    CancelTasks,
    CoordinatorHeartbeat,
    FinalizeBatch,
    FinalizeUpgrade,
    PublishVersion,
    RollBack,
    RunnersReport,
    SkipBatch,
    SubmitBatch,
    Task,
    TrainerHeartbeat,
)
from schemas.topics import COORDINATOR_INPUTS, EXPERIENCES, OPERATOR_COMMANDS, Topic
from trinity_bus.bus import Bus, Producer, Received, Undecodable
from trinity_bus.bus.cluster_gauges import cluster_gauges
from trinity_bus.bus.offsets import readable
from trinity_bus.config import Settings
from trinity_bus.coordination import (
    CommandArrived,
    CoordinatorMachine,
    EventArrived,
    Input,
    Leadership,
    Origin,
    Role,
    TaskArrived,
    Tick,
)
from trinity_bus.coordination.state.codec import NEWEST_LEVEL
from trinity_bus.errors import BusError, ProducerFencedError
from trinity_bus.health.process import mark_ready
from trinity_bus.runtime.heap import freeze_gc
from trinity_bus.telemetry import setup_telemetry, traceparent
from trinity_bus.telemetry.metrics import RECORDS_LOST
from workers.coordinator import changelog, gauges, observations
from workers.coordinator.beyond import resolved
from workers.coordinator.changelog import Changelog
from workers.coordinator.intake import MAX_SIGNALS, MAX_TASK_BYTES, MAX_TASKS, Intake, still_read
from workers.coordinator.outputs import Outputs, without_lost
from workers.coordinator.pending_commit import PendingCommit
from workers.coordinator.retention import Commits, Keeper
from workers.coordinator.spans import Spans, sound
from workers.coordinator.standby import LASTING, TRANSACTIONAL_ID, Standby
from workers.coordinator.upset import is_upset, told

log = logging.getLogger("workers.coordinator")

REQUESTS = (SubmitBatch, FinalizeBatch, AbortBatch, CancelTasks, SkipBatch, PublishVersion, RollBack, FinalizeUpgrade)
COMMIT_EVERY_S = 0.008
"""Least time from the begin of a transaction to that of the next. Each costs the brokers, the explorers that it has
orders for, and this process milliseconds, whatever is in it. One that follows a pause begins at once."""
LINGER_S = 0.05
"""How long what nobody waits for is kept for company: tasks of a batch that is not full yet, signs of life."""
TASKS_EVERY_S = 0.025
"""Least time between two takings of tasks off the log: each costs the broker and this process a request, for one as
for hundreds. One that comes after a pause is taken at once."""
POSITIONS_EVERY_S = 1.0
"""How often positions are committed under the consumer group, while records come."""
LEAVE_S = 5.0
"""How long it may take to say that it leaves; without, others notice by the silence."""


async def run(settings: Settings) -> None:
    """Run a coordinator until it is cancelled.

    Raises:
        ProducerFencedError: Another coordinator of this namespace has taken over from this one.
        StateError: The changelog cannot be read by this program.
        TrinityError: The broker cannot be reached, or something is wrong with its topics.
    """
    telemetry = setup_telemetry(
        "coordinator", settings.telemetry, namespace=settings.kafka.namespace, instance=settings.coordinator.name
    )
    try:
        async with Bus(settings.kafka, client_id=settings.coordinator.name) as bus, cluster_gauges(bus):
            freeze_gc()
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
        """Of its present or last time of working; a new one each time."""
        self._settings = settings.coordinator
        self._synchronizer = settings.synchronizer
        self._namespace = settings.kafka.namespace
        self._bus = bus
        self._clock = clock
        self._leadership = Leadership(
            name=self._settings.name,
            incarnation=uuid.uuid4().hex,
            takeover_s=self._settings.takeover_s,
            share=random.random(),  # noqa: S311 - only to differ from others
            now=clock(),
        )
        self._standby = Standby(
            bus, self._leadership, clock, probe_s=self._settings.takeover_s, outage_s=settings.kafka.outage_s
        )
        self._changelog = Changelog()
        """As it was committed last."""
        self._positions: changelog.Positions = {}
        self._commits = Commits({})
        self._keeper = Keeper(bus, lambda: self.machine, self._commits, every_s=self._settings.retention_s, keep_s=None)
        """Of its present or last time of working too, both."""
        self._newest_ms = 0
        """When the newest record was written that was read, by the brokers' clocks."""
        self._has_unmarked = False
        """Whether records were read whose positions are not committed under the group."""
        self._marked_at = self._ticked_at = self._beat_at = clock()
        self._committing_at = self._tasks_at = clock()
        """When the last transaction began, and when tasks were taken last."""

    async def run(self) -> None:
        """Stands by, works when it is its turn, until cancelled.

        Raises:
            ProducerFencedError: Another coordinator has taken over from this one.
            BrokerUnreachableError: The broker was away for too long.
        """
        await self._bus.ensure_topics()
        gauges.watch(lambda: self.machine if self._leadership.role is Role.ACTIVE else None)
        observations.begin()
        # Standing by is work too: whoever starts this process need not wait until it leads.
        mark_ready()
        while True:
            producer, state = await self._standby.win()
            try:
                await self._lead(producer, state)
            except ProducerFencedError as error:
                self._leadership.fenced(self._clock())
                if self._leadership.role is Role.FENCED:
                    raise ProducerFencedError(
                        f"another coordinator of namespace {self._namespace!r} has taken over; "
                        f"{self._settings.name} stops, and has written nothing since"
                    ) from error
                log.info("another coordinator was faster to take over")
            except LASTING:
                raise
            except BusError as error:
                self._leadership.broken(self._clock())
                self._standby.check_outage(error)
            finally:
                await producer.stop()

    async def _lead(self, producer: Producer, state: Changelog) -> None:
        """Works until cancelled, fenced, or failed by the log."""
        began = self._clock()
        self._changelog = state
        self._restore()
        if self.machine.level < NEWEST_LEVEL:
            log.info(
                "the state has level %d, and may have %d: run `trinity-bus upgrade finalize` once nothing of the "
                "version before runs or may have to come back",
                self.machine.level,
                NEWEST_LEVEL,
            )
        positions, gone = still_read(state.positions)
        if gone:
            log.warning(
                "the state has positions in %s, which coordinators of this version do not read: they are forgotten, "
                "and what was not yet read there is not decided upon",
                ", ".join(gone),
            )
        found = await readable(self._bus, COORDINATOR_INPUTS, positions)
        if found.lost:
            RECORDS_LOST.add(found.lost)
            log.error("%d tasks, commands and events were deleted by retention before they were read", found.lost)
        self._positions = await resolved(
            found, self._settings.dedup_window, lambda: self._live(producer), self._settings.heartbeat_s
        )
        state.positions = dict(self._positions)
        self._has_unmarked = False
        try:
            async with producer.transaction():
                await self._beat(Outputs(producer))
            self._beat_at = self._clock()
            self._leadership.lead(self._beat_at)
            self._commits = Commits(self._positions)
            self._keeper = Keeper(
                self._bus,
                lambda: self.machine,
                self._commits,
                every_s=self._settings.retention_s,
                keep_s=self._settings.keep_s,
            )
            async with Intake(self._bus, self._positions) as intake, self._keeper.working():
                log.info("ready: restored from %d records in %.3f s", state.records, self._clock() - began)
                await self._work(producer, intake)
        except asyncio.CancelledError:
            await self._say_left(producer)
            raise

    def _restore(self) -> None:
        """Make a machine of what was committed last."""
        self.machine = CoordinatorMachine(self._settings, self._synchronizer)
        self.machine.restore(self._changelog.entries.items())
        gauges.BATCH_AGES.follow(self.machine.ledger.batches)

    async def _live(self, producer: Producer) -> None:
        """Says that it is there, and finds out whether it was fenced."""
        async with producer.transaction():
            await Outputs(producer).tell_leader(self._leadership.entry("active"))

    async def _beat(self, outputs: Outputs) -> None:
        """Says that it works, and how much."""
        await outputs.tell_leader(self._leadership.entry("active"))
        await outputs.tell_figures(
            CoordinatorHeartbeat(
                coordinator=self._settings.name,
                incarnation=self._leadership.incarnation,
                **asdict(self.machine.figures()),
                sent_at=time.time(),
            )
        )

    async def _say_left(self, producer: Producer) -> None:
        self._leadership.leave(self._clock())
        try:
            async with asyncio.timeout(LEAVE_S), producer.transaction():
                await Outputs(producer).tell_leader(self._leadership.entry("left"))
        except (TimeoutError, BusError) as error:
            log.warning("cannot say that it leaves (%s); another coordinator will notice", error or "no answer in time")

    async def _work(self, producer: Producer, intake: Intake) -> None:
        """Read and decide; commit what was decided, one transaction after the other, meanwhile."""
        pending = PendingCommit(Spans(self._namespace))
        under_way: PendingCommit | None = None
        committing: asyncio.Task[None] | None = None
        try:
            while True:
                try:
                    await self._read(intake, pending, committing)
                    if committing is not None and committing.done():
                        committing.result()
                        committing = under_way = None
                    if committing is None and self._clock() >= self._commit_at(pending):
                        committing = self._begin_commit(producer, pending)
                        under_way, pending = pending, PendingCommit(Spans(self._namespace))
                except Exception as error:
                    if not is_upset(error):
                        raise
                    log.exception("what was decided upon %d records has to be taken back", len(pending.received))
                    again = pending.received
                    if committing is not None and under_way is not None and not await _is_committed(committing):
                        again = under_way.received + again
                    committing = under_way = None
                    await self._go_on_with_care(producer, again)
                    pending = PendingCommit(Spans(self._namespace))
        finally:
            if committing is not None:
                committing.cancel()
                await asyncio.wait([committing])
                if not committing.cancelled():
                    # It has been raised above, or this is the end for another reason.
                    committing.exception()

    async def _go_on_with_care(self, producer: Producer, received: list[Received[Any]]) -> None:
        """Decides anew, one by one, upon all that is not committed; refuses what cannot be decided upon."""
        self._restore()
        self._positions = dict(self._changelog.positions)
        # What follows from the state alone is not to be put down to the next input.
        await self._decide_alone(producer, [])
        for item in received:
            try:
                await self._decide_alone(producer, [item])
            except Exception as error:
                if not is_upset(error):
                    raise
                self._restore()
                refused = PendingCommit(Spans(self._namespace), upsetting=[(item, told(error))])
                await self._commit_now(producer, refused)

    async def _decide_alone(self, producer: Producer, received: list[Received[Any]]) -> None:
        pending = PendingCommit(Spans(self._namespace))
        self._decide(pending, received, self._clock())
        await self._commit_now(producer, pending)

    async def _commit_now(self, producer: Producer, pending: PendingCommit) -> None:
        """Commit what was decided, and wait for it."""
        now = self._clock()
        beats = now >= self._beat_at + self._settings.heartbeat_s
        if beats:
            self._beat_at = now
        self._committing_at = now
        changes, positions = self.machine.changes(), dict(self._positions)
        await self._commit(producer, pending, changes, positions, [], beats=beats, due=False)

    async def _read(self, intake: Intake, pending: PendingCommit, committing: asyncio.Task[None] | None) -> None:
        """Wait for records, until the next tick or until the commit is done at most, and decide."""
        if committing is not None and self._clock() >= self._committing_at + self._settings.heartbeat_s:
            # The broker does not answer, so that nobody's silence says anything now, and no time is counted.
            await asyncio.wait([committing])
            return
        next_at = self._ticked_at + self._settings.tick_s
        if committing is None:
            next_at = min(next_at, self._beat_at + self._settings.heartbeat_s)
            if pending.since is not None:
                next_at = min(next_at, self._commit_at(pending))
        now = self._clock()
        has_room = pending.tasks < MAX_TASKS and pending.task_bytes < MAX_TASK_BYTES
        tasks = has_room and self.machine.wants_tasks()
        if tasks and now < self._tasks_at + TASKS_EVERY_S:
            tasks, next_at = False, min(next_at, self._tasks_at + TASKS_EVERY_S)
        received = await intake.next(
            max(0.0, next_at - now), signals=pending.signals < MAX_SIGNALS, tasks=tasks, until=committing
        )
        now, before = self._clock(), pending.tasks
        ticks = now >= self._ticked_at + self._settings.tick_s
        if ticks:
            self._ticked_at = now
        self._decide(pending, received, now, ticks=ticks)
        if pending.tasks > before:
            self._tasks_at = now

    def _decide(
        self, pending: PendingCommit, received: list[Received[Any]], now: float, *, ticks: bool = False
    ) -> None:
        """Has the machine decide upon records that came together."""
        pending.take(received, now)
        for item in received:
            self._newest_ms = max(self._newest_ms, item.timestamp_ms)
            self._positions[item.topic.name, item.partition] = item.last_offset + 1
            self._has_unmarked = True
        inputs = self._inputs(received, pending.spans)
        if ticks:
            inputs.append(Tick())
        pending.add(self.machine.handle_all(inputs, now))

    def _commit_at(self, pending: PendingCommit) -> float:
        """When the next transaction begins, as far as it is decided."""
        soonest = self._committing_at + COMMIT_EVERY_S
        if pending.since is None or pending.is_awaited:
            return soonest
        return max(soonest, min(pending.since + LINGER_S, self._beat_at + self._settings.heartbeat_s))

    def _begin_commit(self, producer: Producer, pending: PendingCommit) -> asyncio.Task[None] | None:
        """Begins to commit what was decided; None where there is nothing to tell."""
        now = self._clock()
        changes = self.machine.changes()
        due = self._has_unmarked and now >= self._marked_at + POSITIONS_EVERY_S
        beats = now >= self._beat_at + self._settings.heartbeat_s
        if not (pending.effects or changes or pending.unreadable or due or beats):
            # Nothing of it outlives a restart.
            self._changelog.positions = dict(self._positions)
            return None
        if due:
            self._has_unmarked, self._marked_at = False, now
        if beats:
            self._beat_at = now
        self._committing_at = now
        # Decisions go on, and with them the positions.
        forgotten = self._keeper.take_tombstones()
        commit = self._commit(producer, pending, changes, dict(self._positions), forgotten, beats=beats, due=due)
        return asyncio.create_task(commit, name="commit")

    async def _commit(
        self,
        producer: Producer,
        pending: PendingCommit,
        changes: list[tuple[str, bytes | None]],
        positions: changelog.Positions,
        forgotten: list[tuple[Topic, str]],
        *,
        beats: bool,
        due: bool,
    ) -> None:
        with pending.spans:
            commands = pending.effects
            if pending.ends_batches:
                begins, ends = await asyncio.gather(
                    self._bus.beginning_offsets(EXPERIENCES), self._bus.end_offsets(EXPERIENCES)
                )
                commands = without_lost(commands, begins, ends)
            async with producer.transaction():
                outputs = Outputs(producer)
                await outputs.refuse(pending.unreadable, pending.upsetting)
                await outputs.carry_out(commands, pending.originals, pending.spans)
                await outputs.record_changes(changes, positions)
                await outputs.forget(forgotten)
                if beats:
                    await self._beat(outputs)
                if due:
                    await outputs.show_progress(positions, group=f"{self._namespace}.{TRANSACTIONAL_ID}")
        self._changelog.committed(changes, positions)
        now = self._clock()
        self._commits.made(positions, self._newest_ms)
        if beats:
            self._leadership.committed(now)
        if pending.since is not None:
            observations.LATENCY.record(now - pending.since)

    def _inputs(self, received: list[Received[Any]], spans: Spans) -> list[Input]:
        inputs: list[Input] = []
        for item in received:
            if isinstance(item.record, Undecodable):
                continue
            if isinstance(item.record, Task):
                span = spans.process(item, item.record)
                context = sound(item.traceparent) or traceparent(span)
                inputs.append(TaskArrived(item.record, Origin(item.partition, item.offset), context))
            elif isinstance(item.record, REQUESTS):
                operator = item.topic is OPERATOR_COMMANDS
                inputs.append(CommandArrived(item.record, sound(item.traceparent), operator))
            elif not isinstance(item.record, RunnersReport):
                # That is for people to look at.
                if isinstance(item.record, TrainerHeartbeat) and item.record.model == self._settings.model:
                    self._keeper.heard(item.record)
                inputs.append(EventArrived(item.record, sound(item.traceparent)))
        return inputs


async def _is_committed(committing: asyncio.Task[None]) -> bool:
    """Wait for a transaction; False where what was decided upon could not be written."""
    try:
        await committing
    except Exception as error:
        if not is_upset(error):
            raise
        return False
    return True
