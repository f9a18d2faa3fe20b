"""What an operator may change: which version is served. Each is asked for once more before it is done.

It is the command that ``trinity-bus versions publish`` sends; the coordinator's log and ``operator-commands`` say that
a client named ``console-<who>`` sent it.
"""

import logging
import re
from typing import Final

from aiohttp import web

from trinity_bus.client import Synchronizer
from trinity_bus.errors import RefusedError
from workers.console.access_control import operator
from workers.console.page_context import BadLinkError, PageContext

log = logging.getLogger("workers.console")

_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")


class Actions:
    """Handlers of what operators do to versions: serve one, go back to the newest.

    Args:
        context: What handlers make pages of.
    """

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def install(self, app: web.Application) -> None:
        """Answer in an application."""
        app.router.add_get("/versions/{version}/serve", self._ask)
        app.router.add_post("/versions/{version}/serve", self._serve)
        app.router.add_get("/versions/newest", self._ask_newest)
        app.router.add_post("/versions/newest", self._serve_newest)

    async def _ask(self, request: web.Request) -> web.Response:
        operator(request)
        version = _version(request)
        return self._context.render(
            request,
            "confirm.html",
            question=f"Serve version {version}?",
            consequence=f"Every explorer takes version {version}, and no newer one until the newest is asked for "
            "again. Training goes on meanwhile, with the batches for which it is fresh enough; the others wait.",
            action=f"/versions/{version}/serve",
            yes=f"Serve version {version}",
            back="/versions",
        )

    async def _ask_newest(self, request: web.Request) -> web.Response:
        operator(request)
        return self._context.render(
            request,
            "confirm.html",
            question="Serve the newest version again?",
            consequence="Every explorer takes the newest version, and each that comes after it. Batches that wait for "
            "fresher weights go on.",
            action="/versions/newest",
            yes="Serve the newest again",
            back="/versions",
        )

    async def _serve(self, request: web.Request) -> web.Response:
        return await self._publish(request, _version(request))

    async def _serve_newest(self, request: web.Request) -> web.Response:
        return await self._publish(request, None)

    async def _publish(self, request: web.Request, version: int | None) -> web.Response:
        who = operator(request).name
        log.warning("%s asks that %s be served", who, "the newest version" if version is None else f"version {version}")
        name = f"console-{_NOT_A_NAME.sub('-', who)}"
        try:
            async with Synchronizer(self._context.settings, bus=self._context.feed.bus, name=name) as synchronizer:
                cost = await synchronizer.publish_version(version)
        except RefusedError as error:
            return self._context.told(request, "It was refused", str(error), "/versions", "bad")
        done = (
            "The newest version is served as soon as it may be." if version is None else f"Version {version} is served."
        )
        return self._context.told(request, "Done", f"{done} {cost}".strip(), "/versions")


def _version(request: web.Request) -> int:
    text = request.match_info["version"]
    if not text.isdecimal() or len(text) > 12:
        raise BadLinkError(f"{text[:40]!r} is no version")
    return int(text)
