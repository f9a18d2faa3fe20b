"""The coordinator's process: reads, lets the machine decide, commits; again and again. Any number may run, one works.

::

    start:  topics --> STAND BY until nobody else works --> take over: fence, read the changelog to its end
    term:   tasks, commands, events --> CoordinatorMachine --> ONE transaction: rollouts, batches, results, replies,
                                                     model-versions, dead-letters, changelog, input positions
    stop:   the changelog says that it has left, so that another one takes over at once

A transaction commits all that was decided since the last one or nothing. Killed at any point, a successor repeats
exactly what was not committed. The broker keeps it that only one works, see ``coordination.leadership``.

==============================  =======================================================================================
what fails                      what happens
==============================  =======================================================================================
a record cannot be decoded      a dead letter, in the same transaction; likewise where it causes an exception: see
                                :mod:`workers.coordinator.pending_commit`
the broker is away for a while  the open transaction waits for it, see :mod:`trinity_bus.bus.write.producer`
the transaction fails           nothing of it counts; the machine is forgotten, and this process stands by again: if
                                nobody has taken over meanwhile, it goes on from the last commit itself
a commit gets no answer         nobody knows whether it counts: likewise, with a new producer, whose start settles it
the broker is away for longer   after ``kafka.outage_s`` the process ends and says so
another one has taken over      ``ProducerFencedError``: the process ends and says so
too much is open                tasks are not read any more until some have ended; the log holds them
positions beyond the log's end  :mod:`workers.coordinator.input_reader` has the rule
records lost to retention       they are skipped, with an error in the log; an experience that is gone before its batch
                                ends makes its task a failed one
==============================  =======================================================================================
"""

import logging
import random
import uuid
from collections.abc import Callable

from trinity_bus import awake
from trinity_bus.bus import Bus
from trinity_bus.bus.administration.cluster_gauges import cluster_gauges
from trinity_bus.config import Settings
from trinity_bus.coordination import CoordinatorMachine, Leadership, Role
from trinity_bus.errors import BusError, ProducerFencedError
from trinity_bus.health.process import mark_ready
from trinity_bus.runtime.memory import collect_young_only, freeze_gc
from trinity_bus.telemetry import setup_telemetry
from workers.coordinator import observations
from workers.coordinator.leader_term import LeaderTerm
from workers.coordinator.standby import LASTING, Standby
from workers.preconditions import ensure

log = logging.getLogger("workers.coordinator")


async def run(settings: Settings) -> None:
    """Run a coordinator until it is cancelled.

    Raises:
        TrinityError: It cannot start with these settings, another one has taken over, the changelog cannot be read by
            this program, the broker cannot be reached, or something is wrong with its topics.
    """
    ensure("coordinator", settings)
    telemetry = setup_telemetry(
        "coordinator", settings.telemetry, namespace=settings.kafka.namespace, instance=settings.coordinator.name
    )
    try:
        async with Bus(settings.kafka, client_id=settings.coordinator.name, patient=True) as bus, cluster_gauges(bus):
            freeze_gc()
            collect_young_only()
            await Coordinator(settings, bus).run()
    finally:
        telemetry.shutdown()


class Coordinator:
    def __init__(self, settings: Settings, bus: Bus, clock: Callable[[], float] = awake.now) -> None:
        self._settings = settings
        self._bus = bus
        self._clock = clock
        own = settings.coordinator
        self._leadership = Leadership(
            name=own.name,
            incarnation=uuid.uuid4().hex,
            takeover_s=own.takeover_s,
            share=random.random(),  # noqa: S311 - only to differ from others
            now=clock(),
        )
        self._standby = Standby(bus, self._leadership, clock, probe_s=own.takeover_s, outage_s=settings.kafka.outage_s)
        self._term: LeaderTerm | None = None

    @property
    def machine(self) -> CoordinatorMachine | None:
        """The one that decides; None while this coordinator stands by."""
        return self._term.machine if self._term is not None and self._leadership.role is Role.ACTIVE else None

    async def run(self) -> None:
        """Stand by, and work when it is its turn, until cancelled."""
        await self._bus.ensure_topics()
        observations.watch(lambda: self.machine)
        observations.begin()
        # Standing by is work too: whoever starts this process need not wait until it leads.
        mark_ready()
        while True:
            producer, state = await self._standby.win()
            self._term = LeaderTerm(self._settings, self._bus, self._leadership, producer, state, clock=self._clock)
            try:
                await self._term.work()
            except ProducerFencedError as error:
                self._leadership.fenced(self._clock())
                log.info("fenced: another one takes over, or a transaction was open for too long (%s)", error)
            except LASTING:
                raise
            except BusError as error:
                self._leadership.broken(self._clock())
                self._standby.check_outage(error)
            finally:
                await producer.stop()
