"""What all pages have in common: the frame, the moment, and that a page is made once for all who look at the same."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from trinity_bus.config import Settings
from trinity_bus.console.index.index import Index
from trinity_bus.console.index.terms import PageAsk
from trinity_bus.console.web.render import MAX_QUERY, Frame, Pages, parsed_moment
from trinity_bus.console.web.who import Visitor
from trinity_bus.errors import TrinityError
from workers.console.mesh_watcher import MeshWatcher

type Values = Callable[[Frame], Awaitable[Mapping[str, Any]]]  # What a page shows

VISITOR: Final = web.RequestKey("visitor", Visitor)
COOKIE: Final = "trinity-console"
_ROWS: Final = 100  # Of a list
_SHARED: Final = 256  # Pages that are kept until something is new


class BadLinkError(TrinityError, ValueError):
    """A link says what no page can show."""


class NotThereError(TrinityError, LookupError):
    """What a link names is not on the log, or not any more."""


class PageContext:
    def __init__(self, settings: Settings, feed: MeshWatcher) -> None:
        self.settings = settings
        self.feed = feed
        self.pages = Pages(settings.console.jaeger_url or "")
        self._made: dict[tuple[str, ...], asyncio.Future[str]] = {}
        self._made_of = -1

    def bare_frame(self, request: web.Request) -> Frame:
        """Return the frame of a page that takes nothing from its link."""
        return Frame(
            namespace=self.settings.kafka.namespace,
            visitor=request[VISITOR],
            path=request.path,
            theme=theme_of(request),
            trouble=self.feed.trouble,
            can_log_out=COOKIE in request.cookies,
            part="X-Part" in request.headers,
        )

    def frame(self, request: web.Request) -> Frame:
        if len(request.query_string) > MAX_QUERY:
            raise BadLinkError(f"a link has at most {MAX_QUERY} characters")
        try:
            until = parsed_moment(request.query.get("until"))
        except ValueError as error:
            raise BadLinkError(str(error)) from None
        extent = self.feed.index.extent
        pairs = [(name, value) for name, value in request.query.items() if name != "until"]
        return replace(
            self.bare_frame(request),
            names=request.match_info,
            query=dict(pairs),
            pairs=pairs,
            until=until,
            begin=None if extent is None else extent.first_at,
            now=time.time(),
            is_record=self.feed.is_record,
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

    def of_index(self, answer: Callable[[Index, Frame], Mapping[str, Any]]) -> Values:
        """Return what a page shows of which the index knows all; ``answer`` is called in a thread."""
        return lambda frame: self.feed.index.ask(lambda index: answer(index, frame))

    def render(self, request: web.Request, template: str, **values: Any) -> web.Response:
        return page(self.pages.render(template, self.frame(request), **values))

    def told(self, request: web.Request, title: str, message: str, back: str, kind: str = "") -> web.Response:
        return self.render(request, "told.html", title=title, message=message, back=back, kind=kind)

    async def _make(self, template: str, frame: Frame, values: Values) -> str:
        # A page of what a model wrote may take a second to be escaped, and others wait for theirs.
        return await asyncio.to_thread(self.pages.render, template, frame, **await values(frame))


def page(html: str, status: int = 200) -> web.Response:
    """Return a page, which nobody keeps."""
    return web.Response(text=html, status=status, content_type="text/html", headers={"Cache-Control": "no-store"})


def theme_of(request: web.Request) -> str:
    """Return what the reader has chosen: ``light``, ``dark``, or nothing."""
    theme = request.cookies.get("theme", "")
    return theme if theme in {"light", "dark"} else ""


def there[T](found: T | None, what: str, until: float | None) -> T:
    """Return what was found. Raises NotThereError: nothing was."""
    if found is None:
        raise NotThereError(f"{what} is not on the log" + ("" if until is None else " at this moment"))
    return found


def page_ask(frame: Frame) -> PageAsk:
    return PageAsk(_ROWS, frame.query.get("after"))


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
    return whole(text, name) if text else None


def whole(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise BadLinkError(f"{name} = {text[:40]!r} is no whole number")
    return int(text)
