"""Looks at what clients contribute, before the machine is told: the records that a ``Contribute`` names are read.

A contribution, and what follows it on its partition, is held while its records are read, one at a time; all else is
decided upon at once. The position of a partition is committed as far as it was decided upon: what is held when this
process dies is read again by its successor.

===========================================  =========================================================================
what fails                                   what happens
===========================================  =========================================================================
a position beyond the log, or deleted        refused as ``beyond_the_log``
a record that cannot be read, or is another  refused as ``wrong_record``, by ``Examination``
the broker does not answer in time           refused as ``timeout``; the client may ask again, by another id
a transaction that somebody has left open    the same: what is behind it is written, and cannot be read until it ends
===========================================  =========================================================================
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

import msgspec

from schemas import Contribute, ExperienceGroup
from schemas.topics import COMMANDS, EXPERIENCES
from trinity_bus import awake
from trinity_bus.bus import Bus, Received
from trinity_bus.coordination import ContributionArrived, Finding, Uncountable
from trinity_bus.coordination.events.contributions import Examination
from trinity_bus.errors import BusError, RecordGoneError
from workers.coordinator.pending_commit import with_traceback

log = logging.getLogger("workers.coordinator")

LIMIT_S = 10.0  # for one contribution
# Above it no commands of clients are read until some are decided upon; events and operators' commands are.
MOST_HELD = 1000


class ContributionReader:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._held: deque[Received[Any]] = deque()
        self._looking: asyncio.Task[Finding] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    @property
    def full(self) -> bool:
        return len(self._held) > MOST_HELD

    @property
    def under_way(self) -> list[asyncio.Future[Finding]]:
        """What to wait for besides records: when it is done, ``sift`` has something."""
        return [] if self._looking is None else [self._looking]

    def sift(self, received: Sequence[Received[Any]]) -> list[Received[Any]]:
        """Return what can be decided upon now, in the order of each topic; contributions as ``ContributionArrived``."""
        ready: list[Received[Any]] = []
        if self._looking is not None and self._looking.done():
            first = self._held.popleft()
            arrived = ContributionArrived(_command(first), self._looking.result(), first.traceparent)
            self._looking = None
            ready.append(msgspec.structs.replace(first, record=arrived))
            while self._held and not isinstance(self._held[0].record, Contribute):
                ready.append(self._held.popleft())
        for item in received:
            is_held = item.topic is COMMANDS and isinstance(item.record, Contribute)
            if is_held or (self._held and _place(item) == _place(self._held[0])):
                self._held.append(item)
            else:
                ready.append(item)
        if self._held and self._looking is None:
            self._looking = asyncio.create_task(self._look_at(_command(self._held[0])), name="contribution")
        return ready

    async def _look_at(self, command: Contribute) -> Finding:
        try:
            async with awake.timeout(LIMIT_S):
                return await self._examined(command)
        except RecordGoneError as error:
            return Uncountable("beyond_the_log", str(error))
        except TimeoutError:
            why = f"not within {LIMIT_S:g} s; they may lie behind a transaction that somebody has left open"
            return Uncountable("timeout", f"its experiences could not be read in time: {why}")
        except BusError as error:
            return Uncountable("timeout", f"its experiences could not be read in time: {error}")
        except Exception as error:
            # As with every input error: a bug of this program, and the log keeps the command.
            log.exception("the contribution of task %s cannot be looked at", command.task_id)
            return Uncountable("wrong_record", with_traceback(error))

    async def _examined(self, command: Contribute) -> Finding:
        examination = Examination(command)
        if (misnamed := examination.misnamed()) is not None:
            return misnamed
        begins = await self._bus.beginning_offsets(EXPERIENCES)
        ends = await self._bus.written_ends(EXPERIENCES)
        for piece in command.pieces:
            place = piece.position
            if not begins.get(place.partition, 0) <= place.offset < ends.get(place.partition, 0):
                where = f"{EXPERIENCES.name}/{place.partition}@{place.offset}"
                return Uncountable("beyond_the_log", f"there is no record at {where}")
        for piece in command.pieces:
            # One at a time: together they may be larger than the memory is.
            (received,) = await self._bus.fetch(EXPERIENCES, [piece.position], expect=[ExperienceGroup])
            if (wrong := examination.add(piece, received.record)) is not None:
                return wrong
        return examination.finding()


def _command(received: Received[Any]) -> Contribute:
    if not isinstance(received.record, Contribute):
        raise TypeError(f"{received.place} is no contribution")
    return received.record


def _place(received: Received[Any]) -> tuple[str, int]:
    return received.topic.name, received.partition
