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
from schemas.skipped import MAX_REASON_CHARS
from trinity_bus.client import Synchronizer
from trinity_bus.errors import RefusedError
from workers.console.access_control import operator
from workers.console.forms import form
from workers.console.page_context import BadLinkError, PageContext

log = logging.getLogger("workers.console")

_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")


class Actions:
    """Handlers of what operators do to versions: serve one, serve the newest again, end the lineage after one."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def install(self, app: web.Application) -> None:
        for path in ("/versions/{version}/serve", "/versions/newest"):
            app.router.add_get(path, self._ask)
            app.router.add_post(path, self._serve)
        app.router.add_get("/versions/{version}/go-back", self._ask_back)
        app.router.add_post("/versions/{version}/go-back", self._go_back)

    async def _ask(self, request: web.Request) -> web.Response:
        operator(request)
        if "version" not in request.match_info:
            return self._confirm(
                request,
                question="Serve the newest version again?",
                consequence="Every explorer takes the newest version, and each that comes after it. Batches that wait "
                "for fresher weights go on.",
                yes="Serve the newest again",
            )
        version = _version(request)
        return self._confirm(
            request,
            question=f"Serve version {version}?",
            consequence=f"Every explorer takes version {version}, and no newer one until the newest is asked for "
            "again. Training goes on meanwhile, with the batches for which it is fresh enough; the others wait.",
            yes=f"Serve version {version}",
        )

    async def _ask_back(self, request: web.Request) -> web.Response:
        operator(request)
        version = _version(request)
        return self._confirm(
            request,
            question=f"Go back to version {version}?",
            consequence=f"Training goes on from version {version}. What is newer is discarded for good, and the "
            "batches that it was trained on are passed over. Every explorer takes the version at once. To serve an "
            "older one while training goes on, serve it instead.",
            yes=f"Discard what is newer than version {version}",
            asks_why=MAX_REASON_CHARS,
        )

    def _confirm(self, request: web.Request, **asked: str | int) -> web.Response:
        return self._context.render(request, "confirm.html", action=request.path, back="/versions", **asked)

    async def _serve(self, request: web.Request) -> web.Response:
        who = operator(request).name
        version = _version(request) if "version" in request.match_info else None
        what = "the newest version" if version is None else f"version {version}"
        log.warning("%s asks that %s be served", who, what)
        done = f"{what[0].upper()}{what[1:]} is served" + (" as soon as it may be." if version is None else ".")
        return await self._ask_for(request, done, lambda client: client.publish_version(version, asked_by=who))

    async def _go_back(self, request: web.Request) -> web.Response:
        who, version = operator(request).name, _version(request)
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


def _version(request: web.Request) -> int:
    text = request.match_info["version"]
    if not text.isdecimal() or len(text) > 12:
        raise BadLinkError(f"{text[:40]!r} is no version")
    return int(text)
