"""What an operator may change: which version is served, and which one training goes on from.

Each is asked for once more before it is done. These are the commands that ``trinity-bus versions publish`` and
``rollback`` send; the coordinator's log and ``operator-commands`` say that a client named ``console-<who>`` sent it,
and the version's announcement, or its lineage, says who asked.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from schemas.errors import printable
from schemas.record import MAX_REASON_CHARS
from trinity_bus.client import Synchronizer
from trinity_bus.errors import RefusedError
from workers.console.access_control import form, operator
from workers.console.page_context import BadLinkError, PageContext, whole

log = logging.getLogger("workers.console")

_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")


class Actions:
    """Handlers of what operators do to versions: serve one, serve the newest again, end the lineage after one."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def install(self, app: web.Application) -> None:
        for path, act in (
            ("/versions/newest", self._serve),
            ("/versions/{version}/serve", self._serve),
            ("/versions/{version}/go-back", self._go_back),
        ):
            app.router.add_get(path, self._ask)
            app.router.add_post(path, act)

    async def _ask(self, request: web.Request) -> web.Response:
        operator(request)
        told = {"what": request.path.rpartition("/")[2], "version": _version(request), "back": "/versions"}
        return self._context.render(request, "confirm.html", **told, reason_chars=MAX_REASON_CHARS)

    async def _serve(self, request: web.Request) -> web.Response:
        who = operator(request).name
        version = _version(request)
        what = "the newest version" if version is None else f"version {version}"
        log.warning("%s asks that %s be served", who, what)
        done = f"{what[0].upper()}{what[1:]} is served" + (" as soon as it may be." if version is None else ".")
        return await self._ask_for(request, done, lambda client: client.publish_version(version, asked_by=who))

    async def _go_back(self, request: web.Request) -> web.Response:
        who, version = operator(request).name, whole(request.match_info["version"], "version")
        why = (await form(request)).get("why", "").strip()
        if not 0 < len(why) <= MAX_REASON_CHARS:
            raise BadLinkError(f"say why, in at most {MAX_REASON_CHARS} characters: it stands in the lineage")
        log.warning("%s asks that training go back to version %d: %s", who, version, printable(why))
        done = f"Training goes on from version {version}."
        return await self._ask_for(request, done, lambda client: client.roll_back(version, reason=why, asked_by=who))

    async def _ask_for(
        self, request: web.Request, done: str, ask: Callable[[Synchronizer], Awaitable[str]]
    ) -> web.Response:
        name = f"console-{_NOT_A_NAME.sub('-', operator(request).name)}"
        try:
            async with Synchronizer(self._context.settings, bus=self._context.feed.bus, name=name) as synchronizer:
                cost = await ask(synchronizer)
        except RefusedError as error:
            return self._context.told(request, "It was refused", str(error), "/versions", "bad")
        return self._context.told(request, "Done", f"{done} {cost}".strip(), "/versions")


def _version(request: web.Request) -> int | None:
    # None: the newest
    named = request.match_info.get("version")
    return None if named is None else whole(named, "version")
