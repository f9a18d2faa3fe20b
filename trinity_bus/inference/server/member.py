"""One of the servers that an explorer stands for: whether it is there, how busy it is, and with which weights.

::

    GONE --examined--> THERE, with the weights of a label --take--> with those of another
      ^                  |  '--not loaded: with those of no label, and nothing is asked of it until it has taken some
      '--no answer-------'

Who looks after it notices by its label that a server was started anew, or that another explorer has changed it.
"""

import asyncio
import time
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.concurrency import EngineLoad
from trinity_bus.inference.errors import EngineStartError, GenerationError, RequestRefusedError
from trinity_bus.inference.server.client import ServerClient, load_of, read_json
from trinity_bus.inference.server.start import ABORT, Label, Served, ServerKind, examine
from trinity_bus.weights.transport import Source

HEALTH_LIMIT_S: Final = 30.0
_LET_GO_S: Final = 5.0


class _Told(msgspec.Struct):
    success: bool = True
    message: str = ""


class ServerMember:
    def __init__(self, client: ServerClient) -> None:
        self.client = client
        self.found: Served | None = None  # what it is, once it was there
        self.is_there = False
        self.is_doubted = False  # a request was lost since it was looked after
        self.why = "nobody has asked it yet"  # it is not there, or has other weights
        self.label: str | None = None  # of its weights; None: not known, or half of two versions
        self.load: EngineLoad | None = None
        self.responses = 0  # that it was asked for and has not given
        self._loading = asyncio.Lock()

    @property
    def address(self) -> str:
        # Without who logs in
        return self.client.url.rpartition("/")[2].rpartition("@")[2]

    async def examine(self, settings: ExplorerSettings) -> None:
        """Find out what it is, if it is there; EngineStartError: no engine."""
        try:
            self.found, self.label = await examine(self.client, settings)
        except GenerationError as error:
            self.why = str(error)
        else:
            self.is_there = True

    def compare(self, served: Served) -> None:
        """EngineStartError: it is another engine than one that is served."""
        if self.found not in {None, served}:
            raise EngineStartError(
                f"{self.client.url} is {self.found}, where others of explorer.engine_url are {served}"
            )

    def serves(self, labels: Collection[str]) -> bool:
        """Whether it can be asked: it is there, with weights of one of these labels; with any, where there are none."""
        return self.is_there and (not labels or self.label in labels)

    async def look(self, version: int) -> None:
        """See whether it is there, how busy, and with which weights; ``version``: of what is served."""
        assert self.found is not None  # noqa: S101 - it was examined
        try:
            await self.client.ask("/health", limit_s=HEALTH_LIMIT_S)
            self.load = await self._measure(self.found, version)
            if self.found.kind.label_path is not None and self.label is not None and not self._loading.locked():
                async with self._loading:
                    await self._look_at_label(self.found.kind.label_path)
        except (GenerationError, RequestRefusedError) as error:
            self.is_there, self.why = False, str(error)
        else:
            self.is_there, self.is_doubted = True, False

    async def take(self, source: Source, limit_s: float, *, keep_caches: bool) -> float:
        """Load the weights in a folder, and return the seconds of that; GenerationError, RequestRefusedError."""
        assert self.found is not None  # noqa: S101 - it was examined
        async with self._loading:
            began = time.perf_counter()
            try:
                for path, body in self.found.kind.reload(source.folder, source.prefix, keep_caches=keep_caches):
                    _check(await self.client.ask(path, body, limit_s=limit_s), path)
            except (GenerationError, RequestRefusedError) as error:
                self.label, self.why = None, str(error)
                await self._let_go(self.found.kind)
                raise
            self.label = source.prefix
            return time.perf_counter() - began

    async def _let_go(self, kind: ServerKind) -> None:
        # Requests stand still on it, and are not to go on: its weights may be half of two versions.
        if kind.keeps_requests:
            try:
                await self.client.ask(ABORT, {}, limit_s=_LET_GO_S)
            except (GenerationError, RequestRefusedError) as error:
                self.why += f"; its requests wait until it has taken a version: {error}"

    async def _measure(self, found: Served, version: int) -> EngineLoad | None:
        try:
            text = await self.client.ask("/metrics", limit_s=HEALTH_LIMIT_S)
        except RequestRefusedError:
            return None
        return load_of(text.decode(errors="replace"), found.kind.metrics, version)

    async def _look_at_label(self, path: str) -> None:
        found = read_json(await self.client.ask(path, limit_s=HEALTH_LIMIT_S), Label).weight_version
        if found != self.label:
            self.why = f"it has weights {found!r}, not {self.label!r}: it was started anew, or changed"
            self.label = found


def _check(done: bytes, path: str) -> None:
    # SGLang says within a 200 that it failed.
    told = read_json(done, _Told)
    if not told.success:
        raise GenerationError(f"{path}: {told.message}")


def least_loaded(members: Iterable[ServerMember], labels: Collection[str]) -> ServerMember:
    """Return the one that has the least to do, of those that can be asked; GenerationError: there is none."""
    able = [member for member in members if member.serves(labels)]
    if not able:
        raise GenerationError("no server has the version that is served")
    return min(able, key=lambda member: (member.is_doubted, member.responses))


def load_of_all(loads: Collection[EngineLoad | None], version: int) -> EngineLoad | None:
    """Return the load of several servers: the fullest cache, and the requests of all; None: one does not tell."""
    told = [load for load in loads if load is not None]
    if not told or len(told) < len(loads):
        return None
    return EngineLoad(
        max(load.kv_usage for load in told),
        sum(load.running for load in told),
        sum(load.waiting for load in told),
        sum(load.preempted for load in told),
        version,
    )
