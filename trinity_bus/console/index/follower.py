"""Brings the store forward as the log grows: the only I/O between the two.

::

    CONNECTING --the log is another, or ends before what was read--> the store is emptied
        |
        v
    READING (behind) <--> FOLLOWING (at the end)        READING commits every ``_COMMIT_S``, FOLLOWING what it gets
        |
        |--the broker, a topic or the disk fails--> WAITING (a line says why) --1 s--> CONNECTING, from the store
        '--a defect--> STOPPED: the log has its trace; pages go on with what there is

Nothing is kept but in the store, so whatever fails is tried again from there: a broker that comes back, topics that a
mesh has not made yet, a disk that has room again. The mesh sees one more reader of whole topics, without a group, which
takes ``console.read_mib_s`` at most.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any, Final, Literal, Self

from schemas import topics
from schemas.topic import Topic
from trinity_bus import awake
from trinity_bus.bus import Bus, Received
from trinity_bus.bus.read.offsets import readable
from trinity_bus.console.index.questions import StoreError
from trinity_bus.console.index.store import Store
from trinity_bus.errors import BusError
from trinity_bus.runtime.wording import counted
from trinity_bus.telemetry.metrics import RECORDS_LOST

log = logging.getLogger(__name__)

# What the tables are made of
TOPICS: Final[tuple[Topic, ...]] = (
    topics.TASKS,
    topics.ROLLOUTS,
    topics.EXPERIENCES,
    topics.EXPLORER_EVENTS,
    topics.TRAINER_EVENTS,
    topics.COORDINATOR_EVENTS,
    topics.RESULTS,
    topics.BATCHES,
    topics.STEPS,
    topics.TOKEN_FIGURES,
    topics.MODEL_VERSIONS,
    topics.VERSION_HISTORY,
    *topics.ALL_DEAD_LETTERS,
)
type IndexState = Literal["connecting", "reading", "following", "waiting", "stopped"]

_FETCH_BYTES: Final = 8 << 20
_MAX_RECORDS: Final = 1000
_WAIT_S: Final = 1.0
_READ_S: Final = 0.05  # Where nothing comes for so long while it is behind, it may be at the end
_GATHER_S: Final = 0.4  # How long records gather before they are written: each time costs a fetch and a transaction
_COMMIT_S: Final = 0.5
LOOK_S: Final = 10.0  # How often it looks whether it is still the same log
_AGAIN_S: Final = 1.0


class IndexFollower:
    """Feeds a store from the log, in the background. An async context manager, which neither raises nor waits.

    ``bus`` is made, and not started: the broker may be away. ``store`` stays its maker's.
    """

    def __init__(self, bus: Bus, store: Store, *, read_mib_s: int) -> None:
        self._bus = bus
        self._store = store
        self._bytes_s = read_mib_s << 20
        self.state: IndexState = "connecting"
        self.line = "connecting to the log"  # Where it stands, for people
        self.behind = 0  # Records of the log that it has not read
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="console-index")
        self._task.add_done_callback(self._ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def changed(self, timeout_s: float) -> None:
        """Wait until there is something new in the index or its standing, or the time is up. For any number at once."""
        news = self._news
        with contextlib.suppress(TimeoutError):
            async with awake.timeout(timeout_s):
                await news.wait()

    async def caught_up(self) -> None:
        """Wait until all is in the index that the log held at some time after the call. StoreError: it cannot."""
        while self.state != "following":
            if self.state in {"waiting", "stopped"}:
                raise StoreError(self.line)
            await self.changed(1.0)

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except (BusError, StoreError) as error:
                if self.line != str(error):
                    log.warning("the console's index waits: %s", error)
                self._tell("waiting", str(error))
            await asyncio.sleep(_AGAIN_S)

    async def _follow(self) -> None:
        async with self._bus:
            positions = await self._start()
            async with self._bus.reader(
                *TOPICS, start=positions, max_records=_MAX_RECORDS, fetch_bytes=_FETCH_BYTES, gather_s=_GATHER_S
            ) as reader:
                looked_at = committed_at = awake.now()
                while True:
                    began = time.perf_counter()
                    if began - looked_at > LOOK_S:
                        # A reader does not tell that its topic was deleted, or made anew under it.
                        looked_at = began
                        if not self._store.is_of(await self._ids()):
                            raise StoreError("the log was made anew, and so is the index")
                    records = await reader.batch(_READ_S if self.state == "reading" else _WAIT_S)
                    hold = bool(records) and self.state == "reading" and began - committed_at < _COMMIT_S
                    if records or self._store.holds:
                        await asyncio.to_thread(self._store.take, records, reader.positions, hold=hold)
                    if not hold:
                        committed_at = awake.now()
                    self.behind = sum(reader.lag().values())
                    if self.state == "reading" and not records and await reader.is_at_end():
                        self._tell("following", "up to date")
                    elif records:
                        behind = f"{counted(self.behind, 'record')} behind" if self.behind else "up to date"
                        self._tell(self.state, behind)
                    await self._pace(records, began)

    async def _start(self) -> dict[tuple[str, int], int]:
        self._tell("connecting", "connecting to the log")
        ids = await self._ids()
        store = self._store
        if not store.is_of(ids):
            log.warning("the log is another than the console's index was made of: it is made anew")
            await asyncio.to_thread(store.begin_anew)
        found = await readable(self._bus, TOPICS, store.positions)
        if found.beyond:
            log.warning("the log has lost records, so the console's index is made anew: %s", found.beyond[0])
            await asyncio.to_thread(store.begin_anew)
            found = await readable(self._bus, TOPICS, store.positions)
        if found.lost:
            RECORDS_LOST.add(found.lost)
            log.warning("retention has deleted %d records before the console's index read them", found.lost)
        await asyncio.to_thread(store.move, found.positions, found.lost)
        store.belong_to(ids)
        self._tell("reading", "reading the log")
        return found.positions

    async def _ids(self) -> dict[str, str]:
        # Which log it is: of each topic the cluster, and the id that it was made with
        ids = {}
        for topic in TOPICS:
            identity = await self._bus.identity(topic)
            ids[topic.name] = f"{identity.cluster}/{identity.topic}"
        return ids

    async def _pace(self, records: Sequence[Received[Any]], began: float) -> None:
        size = sum(len(record.raw) for record in records)
        await asyncio.sleep(max(0.0, size / self._bytes_s - (time.perf_counter() - began)))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the console's index is brought forward no more", exc_info=error)
            self._tell("stopped", f"a defect has ended it: {error!r}")

    def _tell(self, state: IndexState, line: str) -> None:
        self.state, self.line = state, line
        news, self._news = self._news, asyncio.Event()
        news.set()
