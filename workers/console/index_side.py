"""The index of the log beside the console: brought forward by this process, or read where another one does.

::

    OPENING --the store is free--> FOLLOWING      it is read off the log, and every page knows how far
       |----another console has it--> READING     its answers are as new as that one makes them; tried again later
       '----it cannot be written--> OPENING       pages say why, in a line
    FOLLOWING --a defect--> stopped: the log has its trace, and pages go on with what there is
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from schemas.errors import one_line
from trinity_bus.bus import Bus
from trinity_bus.config import Settings
from trinity_bus.console.index.answers import Extent
from trinity_bus.console.index.files import store_folder
from trinity_bus.console.index.follower import follow_log
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.questions import StoreBusyError, StoreError
from trinity_bus.console.index.store import Store
from trinity_bus.console.index.tokens import ModelTexts, load_texts

log = logging.getLogger("workers.console")

_AGAIN_S: Final = 5.0


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
                await asyncio.sleep(_AGAIN_S)

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
        own = self._settings.console
        try:
            async with aclosing(follow_log(self._bus(), store, read_mib_s=own.read_mib_s)) as standings:
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
