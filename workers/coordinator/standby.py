"""How a coordinator stands by, and how it takes over: the thin shell around ``Leadership``.

::

    FOLLOWING --due, and nothing is left to read--> fence predecessors --> claim --> read to the end --> it leads
        ^                                                 |                  |
        '-------------------------------------------------'---- fenced, or the log failed

The changelog is followed as it is written (committed records only), so that whoever takes over reads only what came
last. ``claim`` is a transaction with nothing but a ``leader`` entry: it finds out cheaply whether another was faster.

====================================  ==================================================================================
what fails                            what happens
====================================  ==================================================================================
the broker does not answer            silence counts anew; after ``kafka.outage_s`` of that the process ends
another one takes over meanwhile      back to following it; the process ends if it had led before, for a while
an entry cannot be read               the process ends: another version of this program wrote it
====================================  ==================================================================================
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from schemas.topics import COORDINATOR_STATE
from trinity_bus import awake
from trinity_bus.bus import Bus, Producer, Reader
from trinity_bus.coordination import Leader, Leadership, Role
from trinity_bus.errors import (
    BrokerUnreachableError,
    BusError,
    ProducerFencedError,
    RecordGoneError,
    RecordTooLargeError,
    TopicMismatchError,
)
from trinity_bus.health.process import watching
from workers.coordinator.outputs import Changelog, Outputs

log = logging.getLogger("workers.coordinator")

TRANSACTIONAL_ID = "coordinator"
# Errors of the log that another attempt would meet again.
LASTING = (TopicMismatchError, RecordTooLargeError, RecordGoneError)
_POLL_S = 0.1
_RETRY_S = 0.25


class Standby:
    """Stands by and takes over, as often as need be.

    ``probe_s``: how long the broker may take to say where the changelog ends; ``outage_s``: how long it may be away.
    """

    def __init__(
        self, bus: Bus, leadership: Leadership, clock: Callable[[], float], *, probe_s: float, outage_s: float
    ) -> None:
        self._bus = bus
        self._leadership = leadership
        self._clock = clock
        self._probe_s = probe_s
        self._outage_s = outage_s
        self._changelog = Changelog()

    async def win(self) -> tuple[Producer, Changelog]:
        """Stand by until it is to lead, and take over: a started producer, and the changelog read to its end since.

        Raises:
            TrinityError: The broker was away for too long, it had led and another one has taken over, or the changelog
                cannot be read by this program.
        """
        while True:
            try:
                async with AsyncExitStack() as stack:
                    reader = await stack.enter_async_context(self._bus.reader(COORDINATOR_STATE, start="beginning"))
                    stack.enter_context(watching("the changelog", reader.keeps_up))
                    self._changelog = Changelog()
                    await self._read_to_end(reader)
                    while True:
                        await self._follow(reader)
                        producer = await self._take_over(reader)
                        if producer is not None:
                            return producer, self._changelog
            except (ProducerFencedError, *LASTING):
                raise
            except BusError as error:
                self._leadership.out_of_touch(self._clock())
                self.check_outage(error)
                await asyncio.sleep(_RETRY_S)

    async def _follow(self, reader: Reader) -> None:
        # Returns when it is due to take over, and has read all there is.
        told: Leader | None = None
        while not (self._leadership.is_due(self._clock()) and await self._has_read_all(reader)):
            leader = self._leadership.leader
            if leader is not None and leader != told and leader.state == "active":
                log.info("standing by: %s works", leader.name)
                told = leader
            await self._take(reader)

    async def _take_over(self, reader: Reader) -> Producer | None:
        # None where another one was faster or the log has failed.
        self._leadership.take_over(self._clock())
        producer = self._bus.producer(transactional_id=TRANSACTIONAL_ID)
        try:
            await producer.start()
            async with producer.transaction():
                await Outputs(producer).tell_leader(self._leadership.entry("taking_over"))
            await self._read_to_end(reader)
        except BaseException as error:
            await producer.stop()
            if isinstance(error, ProducerFencedError):
                self._leadership.fenced(self._clock())
                log.info("another coordinator was faster to take over")
            elif isinstance(error, BusError) and not isinstance(error, LASTING):
                self._leadership.broken(self._clock())
                self.check_outage(error)
            else:
                raise
            return None
        return producer

    async def _has_read_all(self, reader: Reader) -> bool:
        try:
            async with awake.timeout(self._probe_s):
                at_end = await reader.is_at_end()
        except (TimeoutError, BusError) as error:
            self._leadership.out_of_touch(self._clock())
            self.check_outage(error)
            return False
        self._leadership.in_touch(self._clock())
        return at_end

    def check_outage(self, error: Exception) -> None:
        """Warn that the log has failed; BrokerUnreachableError where it has for too long."""
        why = str(error) or type(error).__name__
        if self._leadership.failing_s > self._outage_s:
            raise BrokerUnreachableError(
                f"the log has been of no use for {self._outage_s:g} s (TRINITY_BUS_KAFKA__OUTAGE_S): {why}"
            ) from error
        log.warning("the log is of no use at the moment: %s", why)

    async def _take(self, reader: Reader) -> None:
        received = await reader.batch(_POLL_S)
        for record in received:
            self._changelog.take(record)
        if received:
            self._heard()

    async def _read_to_end(self, reader: Reader) -> None:
        async for record in reader.replay():
            self._changelog.take(record)
        self._heard()

    def _heard(self) -> None:
        self._leadership.progress(self._clock(), self._changelog.leader)
        if self._leadership.role is Role.FENCED:
            raise ProducerFencedError(
                f"another coordinator of namespace {self._bus.settings.namespace!r} has taken over; "
                f"{self._leadership.name} stops, and has written nothing since"
            )
