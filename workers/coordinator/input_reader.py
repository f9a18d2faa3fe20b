"""What the coordinator reads: commands and events first, tasks and what clients ask as far as they are wanted.

::

    events, operators' commands --(all that are there, MAX_SIGNALS at most)--+
    clients' commands ------------(likewise, none if not wanted)-------------+--> one decision
    tasks ------------------------(MAX_TASKS at most, none if not wanted)----+

Three clients, because one would return records in the order in which they were fetched: a result, and the batch that it
completes, would wait behind ten thousand tasks that somebody has just produced, and a heartbeat behind more commands
than can be looked at. What is not wanted stays in the log, but for one small fetch.

Positions may lie where the log does not reach: a broker that loses its power may lose records that were read already; a
topic that is deleted and made anew begins at 0. In both cases what the log holds now may have been read or not, and
nobody can tell. docs/operations.md has the rule: of events and commands reading goes on at the end, ``tasks`` are read
again where those that were read are surely known (``coordinator.dedup_window``); else the operator decides, by
``trinity-bus positions resolve``. That command writes the positions as a coordinator would, and so fences the one that
waits: that ends, and whoever takes over reads from there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from schemas.topics import COMMANDS, COORDINATOR_INPUTS, TASKS
from trinity_bus import awake
from trinity_bus.bus import Bus, Reader, Received
from trinity_bus.bus.read.offsets import BeyondEnd, Readable
from trinity_bus.coordination.commit_schedule import MAX_SIGNALS, MAX_TASKS
from trinity_bus.health.process import watching
from workers.coordinator.outputs import Positions

log = logging.getLogger("workers.coordinator")

COMMAND = "trinity-bus positions resolve --tasks beginning|end"
_SAY_EVERY_S = 60.0


def undecided(beyond: Sequence[BeyondEnd], remembered: int) -> list[BeyondEnd]:
    # Those of which only the operator can say where reading goes on; ``remembered`` ended tasks are known by their id.
    tasks = [one for one in beyond if one.topic == TASKS.name]
    return tasks if sum(one.end - one.begin for one in tasks) > remembered else []


async def resolved(found: Readable, remembered: int, live: Callable[[], Awaitable[None]], every_s: float) -> Positions:
    """Return where reading goes on, by the rule; not while the operator has to decide.

    ``live`` says every ``every_s`` that this coordinator works, and raises when the operator has decided.
    """
    open_ = undecided(found.beyond, remembered)
    said = float("-inf")
    with watching("tasks, of which it is not known what was read", _never):
        while open_:
            if awake.now() - said > _SAY_EVERY_S:
                said = awake.now()
                log.error(
                    "%s: tasks may be lost, or done twice; nothing is read until you decide: %s",
                    "; ".join(map(str, open_)),
                    COMMAND,
                )
            await live()
            await asyncio.sleep(every_s)
    positions = dict(found.positions)
    for one in found.beyond:
        again = one.topic == TASKS.name
        positions[one.topic, one.partition] = one.begin if again else one.end
        log.error(
            "%s: records were lost, or the topic was made anew; %s",
            one,
            "what it holds is read again, and what is known is refused" if again else "reading goes on with what comes",
        )
    return positions


async def _never() -> bool:
    return False


# Events, and what operators ask.
SIGNALS = tuple(topic for topic in COORDINATOR_INPUTS if topic not in (TASKS, COMMANDS))
# Of tasks, and of commands, that are fetched at once: what is not wanted yet is not to fill the memory.
ASKED_FETCH_BYTES = 1 << 20


def still_read(positions: Mapping[tuple[str, int], int]) -> tuple[dict[tuple[str, int], int], list[str]]:
    """Return the positions in topics that are read, and the names of other topics, which an earlier version read."""
    names = {topic.name for topic in COORDINATOR_INPUTS}
    kept = {place: offset for place, offset in positions.items() if place[0] in names}
    return kept, sorted({name for name, _ in positions} - names)


class InputReader:
    def __init__(self, bus: Bus, positions: Mapping[tuple[str, int], int]) -> None:
        # Ahead: a result that comes while a transaction is under way belongs into the next one.
        self._signals = bus.reader(*SIGNALS, start=positions, max_records=MAX_SIGNALS, ahead=True)
        self._commands = bus.reader(
            COMMANDS, start=positions, max_records=MAX_SIGNALS, fetch_bytes=ASKED_FETCH_BYTES, ahead=True
        )
        self._tasks = bus.reader(TASKS, start=positions, max_records=MAX_TASKS, fetch_bytes=ASKED_FETCH_BYTES)
        self._stack = AsyncExitStack()
        self._wants_tasks = self._wants_commands = False

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._signals)
            await stack.enter_async_context(self._commands)
            await stack.enter_async_context(self._tasks)
            stack.enter_context(watching("the inputs", self._keeps_up))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def next(
        self,
        timeout_s: float,
        *,
        tasks: bool,
        signals: bool = True,
        commands: bool = True,
        until: Sequence[asyncio.Future[Any]] = (),
    ) -> list[Received[Any]]:
        """Return the next records; empty if none came within the limit, or any of ``until`` is done.

        ``signals`` are events and operators' commands.
        """
        self._wants_tasks, self._wants_commands = tasks, commands
        all_of_them = ((self._signals, signals), (self._commands, commands), (self._tasks, tasks))
        readers = [reader for reader, wanted in all_of_them if wanted]
        await _any(readers, until, timeout_s)
        return [received for reader in readers for received in await reader.batch(0)]

    async def _keeps_up(self) -> bool:
        # Whether what is wanted is read. All are asked: each counts from when it was asked last.
        signals, commands, tasks = [await reader.keeps_up() for reader in (self._signals, self._commands, self._tasks)]
        return signals and (commands or not self._wants_commands) and (tasks or not self._wants_tasks)


async def _any(readers: list[Reader], until: Sequence[asyncio.Future[Any]], timeout_s: float) -> None:
    # Until one of them has something, or something else has happened, or the limit.
    arrivals = [reader.arrival() for reader in readers]
    waits = [*(arrival for arrival in arrivals if arrival is not None), *until]
    if len(waits) < len(readers) + len(until):
        return
    if waits:
        await awake.wait(waits, timeout_s, return_when=asyncio.FIRST_COMPLETED)
    else:
        await asyncio.sleep(timeout_s)
