"""Reading topics in the background, as long as a client lives.

::

    READING --the broker or the reader breaks--> WAITING (1 s) --> READING, from where it was
       |----records were deleted before they were read--> READING, from the oldest that are kept; they are counted
       |----stop()--> STOPPED
       '----the handler raises--> FAILED: whoever waits is told through ``on_end``

Nothing is lost by any of it but what retention has deleted; handlers may see a record twice.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from trinity_bus.bus.read.reader import Reader, Start
from trinity_bus.bus.read.received import Received
from trinity_bus.errors import BusError, RecordGoneError
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.metrics import RECORDS_LOST

log = logging.getLogger(__name__)

_WAIT_S: Final = 60.0
_AGAIN_S: Final = 1.0


class TopicFollower:
    """Feeds every record of a reader, which ``reader`` makes, to a handler, which must not raise for what is in it.

    ``on_end`` is told the error if the following ends by one. ``written``: whether one is caught up when everything is
    handled that was written, see :meth:`Reader.replay`: for who has read one record of a transaction elsewhere, and
    wants the others.
    """

    def __init__(
        self,
        reader: Callable[[Start], Reader],
        handle: Callable[[Received[Any]], None],
        on_end: Callable[[BaseException], None],
        start: Start = "end",
        *,
        written: bool = False,
    ) -> None:
        self._make = reader
        self._handle = handle
        self._on_end = on_end
        self._start = start
        self._written = written
        self._task: asyncio.Task[None] | None = None
        self._first: Reader | None = None
        self._reader: Reader | None = None  # that is read now; None while it waits
        self._catching_up: list[asyncio.Future[None]] = []
        self._wanted = asyncio.Event()

    async def start(self) -> None:
        """Begin: whatever is written after this returns is handled, wherever it begins."""
        reader = self._make(self._start)
        await reader.start()
        self._first = reader
        self._task = asyncio.create_task(self._run(reader), name="follower")
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._first is not None:
            # A task that is cancelled before its first step does nothing at all, and stops no reader.
            await self._first.stop()
        for waiting in self._catching_up:
            waiting.cancel()

    async def caught_up(self) -> None:
        """Wait until everything that was committed before the call has been handled; see ``written``."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._catching_up.append(waiting)
        self._wanted.set()
        try:
            await waiting
        finally:
            self._catching_up.remove(waiting)

    async def keeps_up(self) -> bool:
        """Whether what is to be read is read, see ``Reader.keeps_up``; not while it waits for a broker."""
        reader = self._reader
        return reader is not None and await reader.keeps_up()

    async def _run(self, reader: Reader) -> None:
        start, started = self._start, True
        missed: Mapping[tuple[str, int], int] | None = None
        while True:
            try:
                if not started:
                    await reader.start()
                if missed is not None:
                    _count_lost(missed, reader.positions)
                    missed = None
                self._reader = reader
                await self._read(reader)
            except RecordGoneError as error:
                log.error("records were deleted before they were read, going on with the oldest: %s", error)  # noqa: TRY400 - where in the code is of no use
                start, missed = "beginning", reader.positions
            except BusError as error:
                log.warning("reading again in %g s: %s", _AGAIN_S, error)
                start = reader.positions or start
            finally:
                self._reader = None
                await reader.stop()
            await asyncio.sleep(_AGAIN_S)
            reader, started = self._make(start), False

    async def _read(self, reader: Reader) -> None:
        while True:
            self._wanted.clear()
            waiting = [one for one in self._catching_up if not one.done()]
            if waiting:
                async for received in reader.replay(written=self._written):
                    self._handle(received)
                for one in waiting:
                    if not one.done():
                        one.set_result(None)
            else:
                for received in await _first(reader.batch(_WAIT_S), self._wanted):
                    self._handle(received)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            for waiting in self._catching_up:
                if not waiting.done():
                    waiting.set_exception(error)
            self._on_end(error)


async def _first(reading: Coroutine[Any, Any, list[Received[Any]]], interruption: asyncio.Event) -> list[Received[Any]]:
    # Nothing if the interruption comes first. A cancelled read loses nothing, says the reader.
    read = asyncio.ensure_future(reading)
    interrupted = asyncio.ensure_future(interruption.wait())
    try:
        await asyncio.wait([read, interrupted], return_when=asyncio.FIRST_COMPLETED)
    finally:
        interrupted.cancel()
        if not read.done():
            read.cancel()
            await asyncio.wait([read])
    return [] if read.cancelled() else read.result()


def _count_lost(missed: Mapping[tuple[str, int], int], kept: Mapping[tuple[str, int], int]) -> None:
    # What lay between where it was to continue and the oldest that are kept, by topic.
    for (topic, partition), oldest in kept.items():
        lost = oldest - missed.get((topic, partition), oldest)
        if lost > 0:
            RECORDS_LOST.add(lost, {names.MESSAGING_DESTINATION_TEMPLATE: topic})
