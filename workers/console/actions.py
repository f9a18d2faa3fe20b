"""What an operator may change: which version is served, which one training goes on from, and dead letters.

Each is asked for once more before it is done. These are the commands that ``trinity-bus versions publish`` and
``rollback`` send; the coordinator's log and ``operator-commands`` say that a client named ``console-<who>`` sent it,
and the version's announcement, or its lineage, says who asked.

A dead letter is put back, mended, as a task alone, and only if it came from ``tasks``: what others wrote is theirs to
write. It is read by the codec that the mesh reads it with, so that what is put back is a task; that there is none of
its id yet is for the coordinator to say, with another dead letter.
"""

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from schemas import Task
from schemas.codec import decode
from schemas.errors import DecodeError, printable
from schemas.record import MAX_REASON_CHARS
from schemas.topics import TASKS
from trinity_bus.bus import Received
from trinity_bus.bus.read.received import refusal_of
from trinity_bus.client import Synchronizer
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.terms import Place
from trinity_bus.console.web.render import Frame
from trinity_bus.errors import RefusedError
from workers.console.access_control import form, operator
from workers.console.page_context import BadLinkError, PageContext, asked_of, page_ask, whole

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


_PATH: Final = r"/dead-letters/{topic:[a-z-]+}/{partition:\d+}/{offset:\d+}"


class DeadLetterPages:
    def __init__(self, context: PageContext) -> None:
        self._context = context

    def install(self, app: web.Application) -> None:
        self._context.add(app, "/dead-letters", "dead_letters.html", self._context.of_index(_letters))
        app.router.add_get(_PATH, self._look)
        app.router.add_post(_PATH, self._put_back)

    async def _look(self, request: web.Request) -> web.Response:
        return self._page(request, await self._letter(request))

    async def _put_back(self, request: web.Request) -> web.Response:
        who = operator(request).name
        letter = await self._letter(request)
        value = (await form(request)).get("value", "")
        if not _is_task(letter):
            return self._page(request, letter, value, "Only what came from tasks can be put back.")
        try:
            task = decode(value.encode(errors="replace"), Task)
        except DecodeError as error:
            return self._page(request, letter, value, f"The mesh would not take this: {error.detail}")
        log.warning("%s puts task %r back, of the dead letter %s", who, task.task_id, letter.place)
        async with self._context.feed.bus.producer() as producer:
            await (await producer.send(TASKS, task.task_id, task))
        return self._context.told(
            request, "It is put back", f"Task {task.task_id} is on the log.", f"/tasks/{task.task_id}"
        )

    async def _letter(self, request: web.Request) -> Received[Any]:
        partition, offset = (whole(request.match_info[name], name) for name in ("partition", "offset"))
        return await self._context.feed.records.dead_letter(Place(request.match_info["topic"], partition, offset))

    def _page(
        self, request: web.Request, letter: Received[Any], value: str | None = None, wrong: str = ""
    ) -> web.Response:
        return self._context.render(
            request,
            "dead_letter.html",
            letter=letter,
            refusal=refusal_of(letter),
            text=letter.raw.decode("utf-8", "backslashreplace"),
            mendable=_is_task(letter),
            mended=_as_json(letter.raw) if value is None else value,
            wrong=wrong,
        )


def _letters(index: Index, frame: Frame) -> Mapping[str, Any]:
    asked = asked_of(frame, "reason", "source", "text")
    reason, source, text = (asked[name] or None for name in ("reason", "source", "text"))
    page = index.dead_letters(page_ask(frame), reason=reason, source_topic=source, text=text, until=frame.until)
    return {"page": page, "asked": asked}


def _is_task(letter: Received[Any]) -> bool:
    return refusal_of(letter).topic == TASKS.name


def _as_json(raw: bytes) -> str:
    # A record as JSON to be mended, where it is JSON or msgpack; else as text
    for read in (msgspec.json.decode, msgspec.msgpack.decode):
        try:
            return json.dumps(read(raw), indent=2, ensure_ascii=False, default=repr)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, ValueError):
            continue
    return raw.decode("utf-8", "backslashreplace")
