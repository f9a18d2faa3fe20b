"""One time of working, from taking over to the end: reads, lets the machine decide, commits; again and again.

::

    OPENING: positions found in the log, the machine restored from the changelog, its first sign of life committed
       '--> WORKING:  read --> decide --> is it time? --> ONE transaction at a time; it reads and decides beside it
               '--an input raises an exception--> CAREFUL: see workers.coordinator.pending_commit

What fails of the log ends the term; nothing of it is known after that but what is committed. So does a commit without
an answer: what it was to commit is decided upon again only by a term that has read whether it is there.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from schemas import BatchRecord, TrainerHeartbeat
from schemas.topics import BATCHES, COORDINATOR_EVENTS, COORDINATOR_INPUTS, TRAINER_EVENTS
from trinity_bus import awake
from trinity_bus.bus import Bus, Producer, Received
from trinity_bus.bus.read.offsets import readable
from trinity_bus.config import Settings, told_settings
from trinity_bus.coordination import (
    CommitPlan,
    CommitSchedule,
    CoordinatorMachine,
    Leadership,
    Tick,
    Write,
)
from trinity_bus.coordination.batches.task_rules import too_large
from trinity_bus.coordination.state.codec import NEWEST_LEVEL
from trinity_bus.errors import BusError, ConfigError
from trinity_bus.runtime.memory import FullCollections
from trinity_bus.telemetry.metrics import RECORDS_LOST
from workers.coordinator import observations
from workers.coordinator.contributions import ContributionReader
from workers.coordinator.input_reader import InputReader, resolved, still_read
from workers.coordinator.log_facts import ExperienceBounds, Lanes
from workers.coordinator.outputs import Changelog, Outputs, Positions, without_lost
from workers.coordinator.pending_commit import PendingCommit, Spans, is_input_error, with_traceback
from workers.coordinator.retention import Commits, Keeper
from workers.coordinator.standby import TRANSACTIONAL_ID

log = logging.getLogger("workers.coordinator")

LEAVE_S = 5.0  # how long the ``left`` entry may take; without it, others notice by the silence


class LeaderTerm:
    """The time in which one coordinator leads. ``producer`` fences all others; ``state`` is kept as committed last."""

    def __init__(
        self,
        settings: Settings,
        bus: Bus,
        leadership: Leadership,
        producer: Producer,
        state: Changelog,
        *,
        clock: Callable[[], float],
    ) -> None:
        # A new one after each input error.
        self.machine = CoordinatorMachine(settings.coordinator, settings.synchronizer)
        self._all_settings = settings
        self._settings = settings.coordinator
        self._namespace = settings.kafka.namespace
        self._bus = bus
        self._leadership = leadership
        self._producer = producer
        self._changelog = state
        self._clock = clock
        self._positions: Positions = {}
        self._newest_ms = 0  # when the newest record was written that was read, by the brokers' clocks
        self._schedule = CommitSchedule(self._settings.tick_s, self._settings.heartbeat_s, now=clock())
        self._commits = Commits({})
        self._collections = FullCollections(clock())
        self._bounds = ExperienceBounds(bus, clock)
        self._lanes = Lanes(bus, clock)
        self._contributions = ContributionReader(bus)
        self._keeper = Keeper(
            bus,
            lambda: self.machine,
            self._commits,
            every_s=self._settings.retention_s,
            keep_s=self._settings.keep_s,
        )

    async def work(self) -> None:
        """Work until cancelled, or fenced or failed by the log (BusError).

        ConfigError where a batch is open that is too large for the settings; nothing was written then.
        """
        began = self._clock()
        self._restore()
        if large := too_large(self.machine.ledger.batches.values(), self._settings):
            raise ConfigError(large)
        if self.machine.level < NEWEST_LEVEL:
            log.info(
                "the state has level %d, and may have %d: run `trinity-bus upgrade finalize` once nothing of the "
                "version before runs or may have to come back",
                self.machine.level,
                NEWEST_LEVEL,
            )
        self._positions = await self._find_positions()
        self._changelog.positions = dict(self._positions)
        self._commits.positions = dict(self._positions)
        try:
            async with self._producer.transaction():
                told = told_settings(self._all_settings, "mesh", "coordinator", "synchronizer")
                await self._beat(Outputs(self._producer), told)
            now = self._clock()
            self._leadership.lead(now)
            self._schedule = CommitSchedule(self._settings.tick_s, self._settings.heartbeat_s, now=now)
            async with InputReader(self._bus, self._positions) as intake, self._keeper.working(), self._contributions:
                log.info(
                    "ready: restored %d records of its changelog in %.3f s",
                    self._changelog.records,
                    self._clock() - began,
                )
                await self._go_on(intake)
        except asyncio.CancelledError:
            await self._say_left()
            raise

    # -- begin and end -----------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        # Of what was committed last.
        self.machine = CoordinatorMachine(self._settings, self._all_settings.synchronizer)
        self.machine.restore(self._changelog.entries.items())
        observations.BATCH_AGES.follow(self.machine.ledger.batches)

    async def _find_positions(self) -> Positions:
        # Says so where that is not where it was left off.
        positions, gone = still_read(self._changelog.positions)
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
        return await resolved(found, self._settings.dedup_window, self._live, self._settings.heartbeat_s)

    async def _live(self) -> None:
        # Shows that it is there, and finds out whether it was fenced.
        async with self._producer.transaction():
            await Outputs(self._producer).tell_leader(self._leadership.entry("active"))

    async def _beat(self, outputs: Outputs, settings: dict[str, str] | None = None) -> None:
        # With its settings when the term begins.
        await outputs.tell_leader(self._leadership.entry("active"))
        heartbeat = self.machine.heartbeat(
            self._settings.name, self._leadership.incarnation, sent_at=time.time(), settings=settings
        )
        await self._producer.send(COORDINATOR_EVENTS, heartbeat.coordinator, heartbeat)

    async def _say_left(self) -> None:
        self._leadership.leave(self._clock())
        try:
            async with awake.timeout(LEAVE_S), self._producer.transaction():
                await Outputs(self._producer).tell_leader(self._leadership.entry("left"))
        except (TimeoutError, BusError) as error:
            log.warning("cannot say that it leaves (%s); another coordinator will notice", error or "no answer in time")

    # -- work --------------------------------------------------------------------------------------------------------

    async def _go_on(self, intake: InputReader) -> None:
        # Commits what was decided, one transaction after the other, while it reads and decides.
        pending = self._nothing()
        under_way: PendingCommit | None = None
        committing: asyncio.Task[None] | None = None
        try:
            while True:
                try:
                    await self._read(intake, pending, committing)
                    if committing is not None and committing.done():
                        committing.result()
                        self._schedule.ended(self._clock())
                        committing = under_way = None
                    if self._schedule.is_due(self._clock()):
                        committing = self._begin_commit(pending)
                        under_way, pending = pending, self._nothing()
                except Exception as error:
                    if not is_input_error(error):
                        raise
                    log.exception("what was decided upon %d records has to be taken back", len(pending.received))
                    again = pending.received
                    if committing is not None and under_way is not None and not await _is_committed(committing):
                        again = under_way.received + again
                    committing = under_way = None
                    self._schedule.taken_back()
                    await self._go_on_with_care(again)
                    pending = self._nothing()
        finally:
            if committing is not None:
                committing.cancel()
                await asyncio.wait([committing])
                if not committing.cancelled():
                    # It has been raised above, or this is the end for another reason.
                    committing.exception()

    async def _read(self, intake: InputReader, pending: PendingCommit, committing: asyncio.Task[None] | None) -> None:
        # As long as the schedule says, and until the commit is done at most.
        now = self._clock()
        if committing is not None and self._schedule.stands_still(now):
            await asyncio.wait([committing])
            return
        plan = self._schedule.plan(now, wants_tasks=self.machine.wants_tasks())
        received = await intake.next(
            0.0 if self.machine.has_more else plan.until - now,
            signals=plan.signals,
            commands=plan.signals and not self._contributions.full,
            tasks=plan.tasks,
            until=[*([] if committing is None else [committing]), *self._contributions.under_way],
        )
        received = self._contributions.sift(received)
        now = self._clock()
        ticks = self._schedule.tick(now)
        # Nothing follows from nothing: the last input has decided what follows from the state, or has left more.
        if received or ticks or self.machine.has_more:
            self._decide(pending, received, now, ticks=ticks)

    def _decide(
        self, pending: PendingCommit, received: list[Received[Any]], now: float, *, ticks: bool = False
    ) -> None:
        inputs, tasks, task_bytes = pending.take(received)
        self._schedule.took(now, signals=len(received) - tasks, tasks=tasks, task_bytes=task_bytes)
        for item in received:
            self._newest_ms = max(self._newest_ms, item.timestamp_ms)
            self._positions[item.topic.name, item.partition] = item.last_offset + 1
            if (
                item.topic is TRAINER_EVENTS
                and isinstance(item.record, TrainerHeartbeat)
                and item.record.model == self._settings.model
            ):
                self._keeper.heard(item.record)
        if ticks:
            inputs.append(Tick())
        effects = self.machine.handle_all(inputs, now)
        pending.effects += effects
        self._schedule.decided(effects)

    def _begin_commit(self, pending: PendingCommit) -> asyncio.Task[None] | None:
        # None where there is nothing to tell.
        changes = self.machine.changes()
        plan = self._schedule.begin(
            self._clock(), has_news=bool(pending.effects or changes or pending.unreadable or pending.failed_inputs)
        )
        if plan is None:
            # Nothing of it outlives a restart.
            self._changelog.positions = dict(self._positions)
            return None
        # Decisions go on, and with them the positions.
        commit = self._commit(plan, pending, changes, dict(self._positions))
        return asyncio.create_task(commit, name="commit")

    async def _commit(
        self,
        plan: CommitPlan,
        pending: PendingCommit,
        changes: list[tuple[str, bytes | None]],
        positions: Positions,
    ) -> None:
        forgotten = self._keeper.take_tombstones()
        with pending.spans:
            async with self._producer.transaction():
                outputs = Outputs(self._producer)
                await outputs.refuse(pending.unreadable, pending.failed_inputs)
                await outputs.record_changes(changes, positions)
                await outputs.forget(forgotten)
                if plan.beats:
                    await self._beat(outputs)
                await self._carry_out(outputs, pending)
                if plan.marks:
                    await self._producer.send_offsets(positions, f"{self._namespace}.{TRANSACTIONAL_ID}")
        try:
            self._take_note(plan, changes, positions)
        except Exception as error:
            # Never an input error: committed decisions must not be repeated.
            log.exception("it is committed, and cannot be taken note of")
            raise BusError(f"after a commit: {type(error).__name__}: {error}") from error

    def _take_note(self, plan: CommitPlan, changes: list[tuple[str, bytes | None]], positions: Positions) -> None:
        self._changelog.committed(changes, positions)
        now = self._clock()
        self._commits.made(positions, self._newest_ms)
        if plan.beats:
            self._leadership.committed(now)
            self._collections.look(now, held=len(self.machine.ledger.tasks))
        if plan.since is not None:
            observations.LATENCY.record(now - plan.since)

    async def _carry_out(self, outputs: Outputs, pending: PendingCommit) -> None:
        # Manifests last, once it is known that what they name is still there.
        carry_out = partial(outputs.carry_out, originals=pending.originals, spans=pending.spans, lanes=self._lanes)
        of_batches = [effect for effect in pending.effects if isinstance(effect, Write) and effect.topic is BATCHES]
        if not any(isinstance(effect.record, BatchRecord) and effect.record.manifest for effect in of_batches):
            await carry_out(pending.effects)
            return
        others = [effect for effect in pending.effects if not isinstance(effect, Write) or effect.topic is not BATCHES]
        async with self._bounds.asked() as asked:
            await carry_out(others)
            self._producer.announce(BATCHES)
            found = await asked
        await carry_out([without_lost(effect, *found) for effect in of_batches])

    # -- after an input error ----------------------------------------------------------------------------------------

    async def _go_on_with_care(self, received: list[Received[Any]]) -> None:
        # One by one, upon all that is not committed; refuses what cannot be decided upon.
        self._restore()
        self._positions = dict(self._changelog.positions)
        # What follows from the state alone is not to be put down to the next input.
        await self._decide_alone([])
        for item in received:
            try:
                await self._decide_alone([item])
            except Exception as error:
                if not is_input_error(error):
                    raise
                self._schedule.taken_back()
                self._restore()
                await self._commit_now(
                    PendingCommit(Spans(self._namespace), failed_inputs=[(item, with_traceback(error))])
                )

    async def _decide_alone(self, received: list[Received[Any]]) -> None:
        pending = self._nothing()
        self._decide(pending, received, self._clock())
        await self._commit_now(pending)

    async def _commit_now(self, pending: PendingCommit) -> None:
        committing = self._begin_commit(pending)
        if committing is not None:
            await committing
            self._schedule.ended(self._clock())

    def _nothing(self) -> PendingCommit:
        return PendingCommit(Spans(self._namespace))


async def _is_committed(committing: asyncio.Task[None]) -> bool:
    # Waits for a transaction; False where what was decided upon could not be written.
    try:
        await committing
    except Exception as error:
        if not is_input_error(error):
            raise
        return False
    return True
