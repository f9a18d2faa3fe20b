"""The index of the log beside the console: brought forward by this process, or read where another one does.

::

    OPENING --the store is free--> FOLLOWING      it is read off the log, and every page knows how far
       |----another console has it--> READING     its answers are as new as that one makes them; tried again later
       '----it cannot be written--> OPENING       pages say why, in a line
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from schemas.errors import one_line
from trinity_bus.bus import Bus
from trinity_bus.config import Settings
from trinity_bus.console.index.answers import Extent
from trinity_bus.console.index.files import store_folder
from trinity_bus.console.index.follower import IndexFollower
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.questions import StoreBusyError, StoreError
from trinity_bus.console.index.store import Store
from trinity_bus.console.index.tokens import ModelTexts, load_texts
from trinity_bus.errors import TrinityError

log = logging.getLogger("workers.console")

_LOOK_S: Final = 10.0
_AGAIN_S: Final = 5.0


class NoIndexError(TrinityError, RuntimeError):
    """There is no index to ask."""


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
        """Ask the index, in a thread. Raises NoIndexError where there is none now."""
        index = self._index
        if index is None:
            raise NoIndexError(self.line)
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
                await asyncio.sleep(_AGAIN_S)

    async def _write(self, texts: ModelTexts | str, touch: Callable[[], None]) -> None:
        own = self._settings.console
        # A thread cannot be cancelled: what it opens is closed all the same.
        opening = asyncio.ensure_future(
            asyncio.to_thread(Store, self.folder, texts=texts, search_tokens=own.search_tokens)
        )
        try:
            store = await asyncio.shield(opening)
            async with IndexFollower(self._bus(), store, read_mib_s=own.read_mib_s) as follower:
                self._index = Index(self.folder)
                while True:
                    waits = follower.state in {"waiting", "stopped"} or follower.behind > 1000
                    self._say(f"The index: {follower.line}" if waits else "")
                    self.extent = await self.ask(lambda index: index.extent())
                    touch()
                    await follower.changed(_LOOK_S)
        finally:
            await self._close()
            (opened,) = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(opened, Store):
                await asyncio.to_thread(opened.close)

    async def _read(self, touch: Callable[[], None]) -> None:
        self._index = Index(self.folder)
        try:
            self.extent = await self.ask(lambda index: index.extent())
            touch()
            await asyncio.sleep(_AGAIN_S)
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
