"""What all pages have in common: the frame, the moment, and that a page is made once for all who look at the same."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web

from trinity_bus.config import Settings
from trinity_bus.console.web.render import MAX_QUERY, Frame, Pages, parsed_moment
from trinity_bus.errors import TrinityError
from workers.console.access_control import COOKIE, VISITOR, page, theme_of
from workers.console.mesh_watcher import MeshWatcher

type Values = Callable[[Frame], Awaitable[Mapping[str, Any]]]  # What a page shows

_SHARED: Final = 256  # Pages that are kept until something is new


class BadLinkError(TrinityError, ValueError):
    """A link says what no page can show."""


class PageContext:
    def __init__(
        self, settings: Settings, feed: MeshWatcher, pages: Pages, clock: Callable[[], float] = time.time
    ) -> None:
        self.settings = settings
        self.feed = feed
        self.pages = pages
        self._clock = clock
        self._made: dict[tuple[str, ...], asyncio.Future[str]] = {}
        self._made_of = -1

    def frame(self, request: web.Request) -> Frame:
        if len(request.query_string) > MAX_QUERY:
            raise BadLinkError(f"a link has at most {MAX_QUERY} characters")
        try:
            until = parsed_moment(request.query.get("until"))
        except ValueError as error:
            raise BadLinkError(str(error)) from None
        extent = self.feed.index.extent
        return Frame(
            namespace=self.settings.kafka.namespace,
            visitor=request[VISITOR],
            path=request.path,
            names=request.match_info,
            query={name: value for name, value in request.query.items() if name != "until"},
            pairs=[(name, value) for name, value in request.query.items() if name != "until"],
            until=until,
            begin=None if extent is None else extent.first_at,
            now=self._clock(),
            theme=theme_of(request),
            trouble=self.feed.trouble,
            is_record=self.feed.is_record,
            can_log_out=COOKIE in request.cookies,
            part="X-Part" in request.headers,
        )

    def add(self, app: web.Application, path: str, template: str, values: Values) -> None:
        """Have a page answer a path."""

        async def answer(request: web.Request) -> web.Response:
            frame = self.frame(request)
            # Those who look at the same at the same time are shown the same.
            key = (request.path_qs, str(frame.part), frame.visitor.proof, frame.theme, frame.trouble)
            if self._made_of != self.feed.serial or len(self._made) >= _SHARED:
                self._made, self._made_of = {}, self.feed.serial
            made = self._made.get(key)
            if made is None:
                made = self._made[key] = asyncio.ensure_future(self._make(template, frame, values))
            # Whoever asked first may go away; the others still wait for it.
            return page(await asyncio.shield(made))

        app.router.add_get(path, answer)

    def render(self, request: web.Request, template: str, **values: Any) -> web.Response:
        return page(self.pages.render(template, self.frame(request), **values))

    def told(self, request: web.Request, title: str, message: str, back: str, kind: str = "") -> web.Response:
        return self.render(request, "told.html", title=title, message=message, back=back, kind=kind)

    async def _make(self, template: str, frame: Frame, values: Values) -> str:
        # A page of what a model wrote may take a second to be escaped, and others wait for theirs.
        return await asyncio.to_thread(self.pages.render, template, frame, **await values(frame))


def asked_of(frame: Frame, *names: str) -> dict[str, str]:
    """Return what a form of a page was filled in with."""
    return {name: frame.query.get(name, "").strip() for name in names}


def number(frame: Frame, name: str) -> float | None:
    """Return a number of a link's query; None where it is not there. Raises BadLinkError where it is none."""
    text = frame.query.get(name, "").strip()
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise BadLinkError(f"{name} = {text[:40]!r} is no number") from None


def count(frame: Frame, name: str) -> int | None:
    text = frame.query.get(name, "").strip()
    if not text:
        return None
    return whole(text, name)


def whole(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise BadLinkError(f"{name} = {text[:40]!r} is no whole number")
    return int(text)
