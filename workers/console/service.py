"""The console service.

::

    start:  check settings -> listen -> ready
            beside it: connect to the broker, follow the mesh, bring the index forward; again and again where that fails

    browsers --HTTP--> door (who, from where) --> pages <-- MeshState, index, records on the log
                                              |-> actions, by an operator --commands--> coordinator
                                              '-> a mesh on this machine, by an operator: started, stopped

    stop:   open pages have ``_DRAIN_S``; then the port is closed

============================  ==========================================================================================
what fails                    what happens
============================  ==========================================================================================
the broker                    every page says so, and shows what was read before; it comes back by itself
the index                     pages that need it say why; the others go on
a topic, a record             the page that needs it says so in a line
this process                  nobody in the mesh notices; the index goes on where it was
============================  ==========================================================================================

Pages that are open are told that something is new, and ask for it themselves. A stream holds nothing but the number of
what it told last, so that a reader who is slow, or a page that is open for a day, takes no memory.
"""

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from aiohttp import web

from trinity_bus.config import Settings
from trinity_bus.console.web.render import STATIC
from trinity_bus.health.process import mark_ready
from trinity_bus.runtime.http import listening
from trinity_bus.runtime.memory import freeze_gc
from trinity_bus.telemetry import setup_telemetry
from workers.console.access_control import AccessControl
from workers.console.actions import Actions, DeadLetterPages
from workers.console.configuration import Configuration
from workers.console.index_pages import Compare, IndexPages
from workers.console.local_mesh import LocalMesh
from workers.console.mesh_watcher import MeshWatcher
from workers.console.page_context import VISITOR, PageContext
from workers.console.rollout_pages import RolloutPages
from workers.preconditions import ensure

MAX_STREAMS: Final = 500
# Streams of one visitor at one address: nobody has as many pages open, and the others keep theirs
MAX_OF_ONE: Final = 50
_SILENCE_S: Final = 15.0  # After which a word is sent all the same, so that a reader who is gone is noticed


class Live:
    def __init__(self, feed: MeshWatcher) -> None:
        self._feed = feed
        self._streams: Counter[tuple[str, str, str | None]] = Counter()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        visitor = request[VISITOR]
        who = (visitor.name, visitor.role, request.remote)
        most = MAX_OF_ONE if self._streams[who] >= MAX_OF_ONE else MAX_STREAMS
        if most == MAX_OF_ONE or self._streams.total() >= MAX_STREAMS:
            raise web.HTTPServiceUnavailable(text=f"{most} pages are open, and no more are told of news.")
        self._streams[who] += 1
        try:
            return await self._told(request)
        finally:
            self._streams[who] -= 1
            self._streams += Counter()  # forgets who has none

    async def _told(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        try:
            seen = self._feed.serial
            while True:
                serial = await self._feed.news(seen, _SILENCE_S)
                told = f"event: changed\ndata: {self._feed.trouble}\n\n" if serial != seen else ": alive\n\n"
                await response.write(told.encode())
                seen = serial
        except ConnectionResetError:
            return response


log = logging.getLogger("workers.console")

_DRAIN_S: Final = 1.0


async def run(settings: Settings, listens: Callable[[str], None] | None = None, *, is_record: bool = False) -> None:
    """Show what the log tells until cancelled; ``listens`` is told ``host:port``."""
    ensure("console", settings)
    freeze_gc()
    telemetry = setup_telemetry("console", settings.telemetry, namespace=settings.kafka.namespace, instance="console")
    try:
        await Console(settings, listens, is_record=is_record).run()
    finally:
        telemetry.shutdown()


class Console:
    def __init__(
        self, settings: Settings, listens: Callable[[str], None] | None = None, *, is_record: bool = False
    ) -> None:
        self._settings = settings
        self.feed = MeshWatcher(settings, is_record=is_record)
        self._listens = listens

    async def run(self) -> None:
        """Answer until cancelled. Raises ConfigError where the port cannot be listened on."""
        own = self._settings.console
        async with AsyncExitStack() as stack:
            address = await stack.enter_async_context(
                listening(self.app(), own.host, own.port, setting="console.host and port", shutdown_s=_DRAIN_S)
            )
            mark_ready()
            if self._listens is not None:
                self._listens(address)
            log.info("the console is at http://%s/", address)
            await self.feed.run()

    def app(self) -> web.Application:
        app = web.Application()
        context = PageContext(self._settings, self.feed)
        AccessControl(context).install(app)
        for part in (IndexPages, RolloutPages, DeadLetterPages, Compare, Actions):
            part(context).install(app)
        mesh = LocalMesh()
        Configuration(context, mesh).install(app)
        app.on_shutdown.append(lambda _: mesh.stop())
        app.router.add_get("/live", Live(self.feed).stream)
        app.router.add_get("/health", self._health)
        app.router.add_static("/static", STATIC)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text=f"{self.feed.trouble or 'ok'}\n")
