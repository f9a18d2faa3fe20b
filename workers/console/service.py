"""The console service.

::

    start:  check settings -> listen -> ready
            beside it: connect to the broker, follow the mesh, bring the index forward; again and again where that fails

    browsers --HTTP--> door (who, from where) --> pages <-- MeshState, index, records on the log
                                              |-> actions, by an operator --commands--> coordinator
                                              |-> a prompt asked again, by an operator --HTTP--> explorers
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
"""

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from aiohttp import web

from trinity_bus.config import Settings
from trinity_bus.console.web.render import STATIC
from trinity_bus.health.process import mark_ready
from trinity_bus.runtime.heap import freeze_gc
from trinity_bus.runtime.http import listening
from trinity_bus.telemetry import setup_telemetry
from workers.console.access_control import AccessControl
from workers.console.actions import Actions
from workers.console.ask_again import AskAgain
from workers.console.compare import Compare
from workers.console.configuration import Configuration
from workers.console.dead_letter_pages import DeadLetterPages
from workers.console.index_pages import IndexPages
from workers.console.live import Live
from workers.console.local_mesh import LocalMesh
from workers.console.mesh_watcher import MeshWatcher
from workers.console.page_context import PageContext
from workers.console.rollout_pages import RolloutPages
from workers.preconditions import ensure

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
        for part in (IndexPages, RolloutPages, DeadLetterPages, Compare, Actions, AskAgain):
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
