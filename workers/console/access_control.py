"""Who comes in, what every answer says to browsers, and how a visitor is told what went wrong.

==============================  ========================================================================================
what                            gets
==============================  ========================================================================================
a name that is not ours in      421: a page of another site has had its own name lead here (DNS rebinding). Looked at
``Host``                        where there is neither a token nor a proxy: a cookie is of one name alone
nobody who is known             the page to log in; 401 to what is no page. Whoever shows ``console.proxy_key`` is the
                                proxy, and is believed who asks; nobody else is
a form that is larger than any  413; one that has not come whole in time: 408; one that is written otherwise than
may be                          browsers do: 415
a form without its proof, or    403: another site has made the browser send it
from another origin
a viewer who acts               403
what there is not               404; a question that cannot be asked 400
a broker that is away           503, where the answer needs it
a fault of this program         500; the traceback is in the log
==============================  ========================================================================================

Answers forbid scripts and styles that are not files of this server, frames, and sending forms elsewhere: what a model
has written stays text, even where it would not have been escaped.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from aiohttp import web
from pydantic import SecretStr

from trinity_bus import awake
from trinity_bus.console.web.who import SESSION_S, Logins, Role, Visitor, host_is_ours, is_name
from trinity_bus.errors import BusError, NoCoordinatorError, TimedOutError, TrinityError
from trinity_bus.runtime.http import read_body, shows_key
from trinity_bus.runtime.secrecy import same_secret
from workers.console.page_context import COOKIE, VISITOR, NotThereError, PageContext, page, theme_of

log = logging.getLogger("workers.console")

PROXY_KEY: Final = "X-Proxy-Key"  # Header in which a proxy shows its key
_FORM: Final = web.RequestKey("form", dict[str, str])
_MAX_FIELDS: Final = 500
_MAX_FORM_BYTES: Final = 8 << 20  # Of an operator: a task that is put back, twice as large as the largest
_MAX_ANSWERS_BYTES: Final = 64 << 10  # Of a visitor who may not act: every setting, with something in it
_MAX_LOGIN_BYTES: Final = 4096
FORM_S: Final = 30.0  # In which a form has to come
_OPEN: Final = ("/static/", "/login", "/health")
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AccessControl:
    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._settings = settings = context.settings.console
        self._sessions = Logins()
        given: tuple[tuple[SecretStr | None, Role], ...]
        given = ((settings.token, "operator"), (settings.viewer_token, "viewer"))
        self._tokens = [(token.get_secret_value(), role) for token, role in given if token is not None]

    def install(self, app: web.Application) -> None:
        app.middlewares.append(self._let_in)
        app.on_response_prepare.append(_say_to_browsers)
        app.router.add_get("/login", self._login_page)
        app.router.add_post("/login", self._log_in)
        app.router.add_post("/logout", self._log_out)

    def visitor(self, request: web.Request) -> Visitor | None:
        header = self._settings.user_header
        if header is not None and self._is_proxy(request):
            names = request.headers.getall(header, [])
            said = request.headers.getall(self._settings.roles_header or "", [])
            # Of two, one came from outside, and nobody knows which.
            if len(names) != 1 or not is_name(names[0]) or len(said) > 1:
                return None
            roles = {role.strip() for one in said for role in one.split(",")}
            proof = self._sessions.proof(f"user:{names[0]}")
            return Visitor(names[0], "operator" if "operator" in roles else "viewer", proof)
        for token, role in self._tokens:
            if shows_key(request, token):
                return Visitor("bearer", role, self._sessions.proof("bearer"))
        if self._tokens:
            return self._sessions.visitor(request.cookies.get(COOKIE, ""), time.time())
        return None if header is not None else Visitor("anybody", "viewer", self._sessions.proof("anybody"))

    def _is_proxy(self, request: web.Request) -> bool:
        key = self._settings.proxy_key
        return key is not None and same_secret(request.headers.get(PROXY_KEY, ""), key.get_secret_value())

    @web.middleware
    async def _let_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self._tokens and self._settings.user_header is None and not host_is_ours(request.host):
            return web.Response(status=421, text="This console is not known under this name.\n")
        path = request.path
        if not any(path == one or (one.endswith("/") and path.startswith(one)) for one in _OPEN):
            visitor = self.visitor(request)
            if visitor is None:
                return self._strangers(request)
            request[VISITOR] = visitor
        try:
            if request.method == "POST":
                await self._check_form(request)
            return await handler(request)
        except web.HTTPRedirection:
            raise
        except Exception as error:  # noqa: BLE001 (each has its answer; what is a fault of this program is logged)
            return self._failed(request, error)

    def _strangers(self, request: web.Request) -> web.StreamResponse:
        wants_page = request.method == "GET" and "text/html" in request.headers.get("Accept", "")
        if self._tokens and wants_page and "X-Part" not in request.headers:
            return web.Response(status=303, headers={"Location": "/login"})
        claims = (self._settings.user_header or "") in request.headers
        hint = f" Whoever says who asks shows console.proxy_key in {PROXY_KEY}." if claims else ""
        return web.Response(status=401, text=f"Log in first.{hint}\n")

    async def _check_form(self, request: web.Request) -> None:
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise web.HTTPForbidden(text="This form was sent by another site.")
        visitor = request.get(VISITOR)
        if visitor is None:
            return
        proof = (await form(request, _MAX_FORM_BYTES if visitor.may_act else _MAX_ANSWERS_BYTES)).get("proof", "")
        if not same_secret(proof, visitor.proof):
            raise web.HTTPForbidden(text="This form is not of this console, or is older than the login: load it again.")

    def _failed(self, request: web.Request, error: Exception) -> web.Response:
        status, message = _told(error)
        if status == 500:
            log.error("a request to %s failed", request.path, exc_info=error)
        if request.get(VISITOR) is None:
            return web.Response(status=status, text=f"{message}\n")
        frame = self._context.bare_frame(request)
        html = self._context.pages.render(
            "told.html", frame, title="This cannot be shown", message=message, kind="bad", back="/"
        )
        return page(html, status)

    async def _login_page(self, request: web.Request) -> web.Response:
        return page(self._context.pages.login(theme_of(request), wrong=False))

    async def _log_in(self, request: web.Request) -> web.Response:
        given = (await form(request)).get("token", "")
        role = next((role for token, role in self._tokens if same_secret(given, token)), None)
        if role is None:
            log.warning("somebody at %s has shown a token that is not known", request.remote)
            return page(self._context.pages.login(theme_of(request), wrong=True), 401)
        response = web.Response(status=303, headers={"Location": "/"})
        cookie = self._sessions.begin(role, time.time())
        response.set_cookie(COOKIE, cookie, max_age=round(SESSION_S), httponly=True, samesite="Strict")
        return response

    async def _log_out(self, request: web.Request) -> web.Response:
        self._sessions.end(request.cookies.get(COOKIE, ""))
        response = web.Response(status=303, headers={"Location": "/login"})
        response.del_cookie(COOKIE, httponly=True, samesite="Strict")
        return response


async def form(request: web.Request, most: int = _MAX_LOGIN_BYTES) -> dict[str, str]:
    """Return a form as browsers send it: no larger, slower or otherwise written, whatever its sender says.

    The framework would decode one as its sender says, and there are encodings that take the square of its length.
    """
    if _FORM not in request:
        try:
            async with awake.timeout(FORM_S):
                body = await read_body(request, most)
        except TimeoutError:
            raise web.HTTPRequestTimeout(text=f"The form did not come within {FORM_S:g} s.") from None
        if body and request.content_type != "application/x-www-form-urlencoded":
            raise web.HTTPUnsupportedMediaType(text="Forms come as application/x-www-form-urlencoded.")
        try:
            fields = parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
        except ValueError:
            raise web.HTTPBadRequest(text=f"A form has {_MAX_FIELDS} fields at most.") from None
        request[_FORM] = dict(fields)
    return request[_FORM]


def operator(request: web.Request) -> Visitor:
    """Return who asks. Raises HTTPForbidden for a viewer, who may change nothing."""
    visitor = request[VISITOR]
    if not visitor.may_act:
        raise web.HTTPForbidden(text="Only an operator may do this: log in with console.token.")
    return visitor


def _told(error: Exception) -> tuple[int, str]:
    match error:
        case web.HTTPException():
            return error.status, error.text or error.reason
        case NotThereError():
            return 404, str(error)
        case BusError() | NoCoordinatorError() | TimedOutError():
            return 503, str(error)
        case TrinityError():
            return 400, str(error)
        case _:
            return 500, "The console has a fault; its log tells more."


async def _say_to_browsers(request: web.Request, response: web.StreamResponse) -> None:
    del request
    response.headers.update(_HEADERS)
