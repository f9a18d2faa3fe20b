"""What pages are made of, kept up to date: the only reading of this service that goes on by itself.

::

    the mesh:   CONNECTING --the broker answers--> FOLLOWING --it is away, or refuses--> CONNECTING, every ``_AGAIN_S``
                           --it has no such run--> CONNECTING: topics are a mesh's to make
    open pages: told that something is new, once in ``TELL_S`` at most

The mesh never notices: nothing is written, and no consumer group joined. A broker that is away is said on every page;
what was read stays there to be looked at.

The index of the log is brought forward by this process, or read where another one does.

::

    OPENING --the store is free--> FOLLOWING      it is read off the log, and every page knows how far
       |----another console has it--> READING     its answers are as new as that one makes them; tried again later
       '----it cannot be written--> OPENING       pages say why, in a line
    FOLLOWING --a defect--> stopped: the log has its trace, and pages go on with what there is
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from typing import Final

from schemas.errors import one_line
from schemas.topics import BATCHES, EVENTS, MODEL_VERSIONS, VERSION_HISTORY
from trinity_bus import awake
from trinity_bus.bus import Bus
from trinity_bus.config import Settings
from trinity_bus.console.index.files import store_folder
from trinity_bus.console.index.follower import PastRecords, follow_log
from trinity_bus.console.index.group_rows import ModelTexts, load_texts
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.store import Store
from trinity_bus.console.index.terms import Extent, StoreBusyError, StoreError
from trinity_bus.errors import BusError, TrinityError, UnknownTopicError
from trinity_bus.health.process import watching
from trinity_bus.runtime.service import first_error
from trinity_bus.view import MeshFollower, MeshState, coordinator_lag, follow

log = logging.getLogger("workers.console")

_INDEX_AGAIN_S: Final = 5.0


class IndexSide:
    def __init__(self, settings: Settings, bus: Callable[[], Bus]) -> None:
        self._settings = settings
        self._bus = bus
        self._index: Index | None = None
        self.folder = store_folder(settings)
        self.line = "The index is being opened."  # Where it stands, where that is worth a line; else empty
        self.extent: Extent | None = None  # How much there is, as far as was looked
        self.texts: ModelTexts | None = None  # Makes text of tokens, where there is a tokenizer
        self.no_texts: str | None = None  # Why there is none

    async def ask[A](self, question: Callable[[Index], A]) -> A:
        """Ask the index, in a thread. Raises StoreError where there is none now."""
        index = self._index
        if index is None:
            raise StoreError(self.line)
        return await asyncio.to_thread(question, index)

    async def run(self, touch: Callable[[], None]) -> None:
        """Bring it forward until cancelled; ``touch`` is called when there is something new."""
        loaded = await asyncio.to_thread(load_texts, self._settings.console.model_path)
        if isinstance(loaded, str):
            self.no_texts = loaded
        else:
            self.texts = loaded
        while True:
            try:
                await self._write(loaded, touch)
            except StoreBusyError as error:
                self._say(f"Another console brings the index forward: {error}")
                await self._read(touch)
            except StoreError as error:
                self._say(f"The index cannot be kept: {error}")
                touch()
                await asyncio.sleep(_INDEX_AGAIN_S)

    async def _write(self, texts: ModelTexts | str, touch: Callable[[], None]) -> None:
        own = self._settings.console
        # A thread cannot be cancelled: what it opens is closed all the same.
        opening = asyncio.ensure_future(
            asyncio.to_thread(Store, self.folder, texts=texts, search_tokens=own.search_tokens)
        )
        try:
            store = await asyncio.shield(opening)
            self._index = Index(self.folder)
            await self._forward(store, touch)
        finally:
            await self._close()
            (opened,) = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(opened, Store):
                await asyncio.to_thread(opened.close)

    async def _forward(self, store: Store, touch: Callable[[], None]) -> None:
        try:
            async with aclosing(follow_log(self._bus(), store)) as standings:
                async for one in standings:
                    self._say(f"The index: {one.line}" if one.state == "waiting" or one.behind > 1000 else "")
                    self.extent = await self.ask(lambda index: index.extent())
                    touch()
        except StoreError:
            raise
        except Exception as error:
            # A defect: pages go on with what there is.
            log.exception("the console's index is brought forward no more")
            self._say(f"The index: a defect has ended it: {error!r}")
            touch()
            await asyncio.Event().wait()

    async def _read(self, touch: Callable[[], None]) -> None:
        self._index = Index(self.folder)
        try:
            self.extent = await self.ask(lambda index: index.extent())
            touch()
            await asyncio.sleep(_INDEX_AGAIN_S)
        finally:
            await self._close()

    async def _close(self) -> None:
        index, self._index = self._index, None
        if index is not None:
            await asyncio.to_thread(index.close)

    def _say(self, line: str) -> None:
        told = one_line(line)
        if told and told != self.line:
            log.warning("%s", told)
        self.line = told


TELL_S: Final = 2.0  # Open pages are told of news at most once in this time
_SILENCE_S: Final = 10.0
_LAG_S: Final = 2.0
_AGAIN_S: Final = 2.0
_GATHER_S: Final = 0.4  # What pages show may be so old, and ``TELL_S``
_TOPICS: Final = (BATCHES, MODEL_VERSIONS, VERSION_HISTORY, *EVENTS)


class MeshWatcher:
    """Follows a mesh until cancelled."""

    def __init__(self, settings: Settings, *, is_record: bool = False) -> None:
        self.is_record = is_record
        self._settings = settings
        self._state = MeshState(settings.mesh.model)
        self._follower: MeshFollower | None = None
        self._bus: Bus | None = None
        self._records: PastRecords | None = None
        self._touched = asyncio.Event()
        self._news = asyncio.Condition()
        self._away = "The console connects to the broker."
        self.index = IndexSide(settings, lambda: self._connection("console-index"))  # The index of the log
        self.lag: dict[str, int] = {}  # What the coordinator has still to read, by topic
        self.serial = 0  # Goes up when something is new

    @property
    def trouble(self) -> str:
        """Why what is shown may be old; empty while all is well."""
        return " ".join(part for part in (self._away, self.index.line) if part)

    @property
    def is_away(self) -> bool:
        return bool(self._away)

    @property
    def state(self) -> MeshState:
        return self._state if self._follower is None else self._follower.state

    @property
    def bus(self) -> Bus:
        """The connection. Raises BusError where there is none now."""
        if self._bus is None:
            raise BusError(self._away)
        return self._bus

    @property
    def records(self) -> PastRecords:
        if self._records is None:
            raise BusError(self._away)
        return self._records

    async def news(self, seen: int, timeout_s: float) -> int:
        """Wait until there is something newer than what was seen, or the time is up; its serial number."""
        try:
            async with awake.timeout(timeout_s), self._news:
                await self._news.wait_for(lambda: self.serial != seen)
        except TimeoutError:
            pass
        return self.serial

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_the_mesh(), name="mesh")
            group.create_task(self.index.run(self._touched.set), name="index")
            group.create_task(self._tell(), name="news")

    def _connection(self, client_id: str) -> Bus:
        return Bus(self._settings.kafka, client_id=client_id)

    async def _follow_the_mesh(self) -> None:
        while True:
            try:
                await self._connected()
            except* TrinityError as errors:
                error = first_error(errors) or errors
                if isinstance(error, UnknownTopicError):
                    self._say(f"There is no such run: {one_line(str(error))}")
                else:
                    self._gone(error)
            await asyncio.sleep(_AGAIN_S)

    async def _connected(self) -> None:
        async with AsyncExitStack() as stack:
            bus = await stack.enter_async_context(self._connection("console"))
            await bus.present()
            for topic in _TOPICS:
                await bus.end_offsets(topic)
            # Fetches wait for each other: those of pages not for those of anybody else.
            self._records = PastRecords(await stack.enter_async_context(self._connection("console-records")))
            state = MeshState(self._settings.mesh.model)
            follower = await stack.enter_async_context(follow(bus, topics=_TOPICS, state=state, gather_s=_GATHER_S))
            stack.enter_context(watching("the mesh", follower.keeps_up))
            self._bus, self._follower, self._state, self._away = bus, follower, state, ""
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._watch_the_lag(bus), name="lag")
                    while True:
                        self._touched.set()
                        await follower.changed(_SILENCE_S)
            finally:
                # What was read is still shown.
                self._bus = self._records = self._follower = None

    async def _tell(self) -> None:
        while True:
            await self._touched.wait()
            self._touched.clear()
            async with self._news:
                self.serial += 1
                self._news.notify_all()
            await asyncio.sleep(TELL_S)

    async def _watch_the_lag(self, bus: Bus) -> None:
        while True:
            try:
                self.lag = await coordinator_lag(bus)
                self._away = ""
            except UnknownTopicError:
                # Another run may be made under this name: nothing of this one is taken over to it.
                raise
            except BusError as error:
                # The follower rides it out; pages say that it does.
                self._gone(error)
            await asyncio.sleep(_LAG_S)

    def _gone(self, error: BaseException) -> None:
        self._say(f"The broker is away, and what is shown may be old: {one_line(str(error))}")

    def _say(self, told: str) -> None:
        if told != self._away:
            log.warning("%s", told)
            self._away = told
            self._touched.set()
