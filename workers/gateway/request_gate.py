"""Who comes in, how many at once, and how it is told what went wrong.

==============================  ========================================================================================
what                            gets
==============================  ========================================================================================
no key, or a wrong one          401
more requests at once than may  429, with ``Retry-After``
no request, or what the engine  400; larger than ``gateway.max_body_mib``: 413; one that has not come whole within
refuses                         ``gateway.body_timeout_s``: 408
a model that is not served, an  404
answer that is not known
no explorer; no coordinator,    503, with ``Retry-After``
for a commit; no room for a
large request
an explorer that is slow        504
explorers that fail             502
a fault of this program         500; the traceback is in the log
==============================  ========================================================================================

A client that goes away takes its request along, to the engine. What goes wrong amid a stream is its last event.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final

import msgspec
import prometheus_client
from aiohttp import web

from schemas.errors import encodable
from trinity_bus import awake
from trinity_bus.chat import ChatError
from trinity_bus.chat.openai import UnknownModelError, error_body
from trinity_bus.config import GatewaySettings
from trinity_bus.errors import BusError, NoCoordinatorError, TrinityError
from trinity_bus.gateway.sessions import ConversationFullError, UnknownAnswerError
from trinity_bus.inference.errors import EngineSlowError, GenerationError, NoEngineError, RequestRefusedError
from trinity_bus.runtime.http import Room, read_body, session_key
from trinity_bus.runtime.secrecy import same_secret

log = logging.getLogger("workers.gateway")

OWNER: Final = web.RequestKey("owner", str)  # by which name the client of a request is known
BY_SESSION_KEY: Final = web.RequestKey("by_session_key", bool)  # whether its session's key is all that it shows
BODY: Final = web.RequestKey("body", bytes)  # what it says, for who answers it to take
# Its room, which is free at its end, or before: once it is written as tokens, unless much of it is stored.
PLACE: Final = web.RequestKey("place", ExitStack)
# Between the buckets of durations: from what needs no engine to what no client waits for.
_BOUNDS_S: Final = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_RETRY_S: Final = 1
_OF_SESSION: Final = "/sessions/{session}/v1/"  # how paths begin that a session's key opens
_REFUSED: Final = "invalid_request_error"

# Of each metric the time that it was made at would be another one.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class NoRoomError(TrinityError):
    """There are more large requests than may be at once."""


class RequestGate:
    """Lets requests in: each key has its client's name, a session's key its session, and open paths need none.

    The keys of a client's sessions have as many requests at once as its own, beside those, and each an eighth of them.
    """

    def __init__(self, keys: Mapping[str, str], open_paths: frozenset[str], own: GatewaySettings) -> None:
        self._keys = dict(keys)
        self._open = open_paths
        self._most = own.max_requests
        self._max_body_mib = own.max_body_mib
        self._body_timeout_s = own.body_timeout_s
        self._room = Room(max(own.max_waiting_mib, 2 * own.max_body_mib) << 20)
        # By client, and by session where it shows that one's key alone.
        self._requests: Counter[tuple[str, str | None]] = Counter()
        self.answered = prometheus_client.Counter(
            "gateway_requests", "Requests that were answered.", ["path", "status"], registry=None
        )
        self.took = prometheus_client.Histogram(
            "gateway_request_duration_seconds", "How long they took.", ["path"], buckets=_BOUNDS_S, registry=None
        )

    @property
    def requests(self) -> int:
        return self._requests.total()

    @web.middleware
    async def let_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.perf_counter()
        response = await self._answer(request, handler)
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else "unknown"
        self.answered.labels(path, str(response.status)).inc()
        self.took.labels(path).observe(time.perf_counter() - began)
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in self._open:
            return await handler(request)
        who = self._who(request)
        if who is None:
            return _refusal(401, "this key is not known here", "authentication_error")
        owner, session = who
        most = self._most if session is None else max(1, self._most // 8)
        alike = [n for (name, of), n in self._requests.items() if name == owner and (of is None) == (session is None)]
        if self._requests[who] >= most or sum(alike) >= self._most:
            return _refusal(429, f"{most} requests at once are the most", "rate_limit_error", retry=True)
        request[OWNER], request[BY_SESSION_KEY] = owner, session is not None
        self._requests[who] += 1
        try:
            with await self._receive(request, owner, session):
                return await handler(request)
        except Exception as error:  # noqa: BLE001 (each has its answer; what is a fault of this program is logged)
            return self._failed(request, error)
        finally:
            self._requests[who] -= 1
            if not self._requests[who]:
                del self._requests[who]

    def _who(self, request: web.Request) -> tuple[str, str | None] | None:
        """Return whose key a request has; to the model in a session, it may be the session's, which is named then."""
        # As OpenAI's or as Anthropic's clients show it.
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        key = bearer if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        resource, session = request.match_info.route.resource, request.match_info.get("session", "")
        in_session = resource is not None and resource.canonical.startswith(_OF_SESSION)
        for own, name in self._keys.items():
            if same_secret(key, own):
                return name, None
            if in_session and same_secret(key, session_key(own, session)):
                return name, session
        return None

    async def _receive(self, request: web.Request, owner: str, session: str | None) -> ExitStack:
        """Wait for the whole of a request, and keep it: while it comes it holds a place of its client's."""
        largest, place = self._max_body_mib << 20, None
        if (told := request.content_length or 0) > largest:
            raise web.HTTPRequestEntityTooLarge(largest, told)
        try:
            async with awake.timeout(self._body_timeout_s):
                place = request[PLACE] = await self._room.take(request, owner, largest, session=session)
                request[BODY] = await read_body(request, largest)
                return place
        except BaseException as error:
            if place is not None:
                place.close()
            if not isinstance(error, TimeoutError):
                raise
            if place is None:
                raise NoRoomError("the gateway has all the large requests that it takes at once") from None
            raise web.HTTPRequestTimeout(reason=f"the request did not come within {self._body_timeout_s:g} s") from None

    def _failed(self, request: web.Request, error: Exception) -> web.Response:
        if isinstance(error, web.HTTPRequestEntityTooLarge):
            return _refusal(413, f"a request has {self._max_body_mib} MiB at most", _REFUSED)
        if isinstance(error, web.HTTPException):
            return _refusal(error.status, error.reason, _REFUSED)
        status, kind = status_of(error)
        if status == 500:
            log.error("a request to %s failed", request.path, exc_info=error)
        param = getattr(error, "param", None)
        return _refusal(status, told(error), kind, retry=status == 503, param=param and encodable(param))


def status_of(error: Exception) -> tuple[int, str]:
    """Return an error's status, and its kind in OpenAI's words."""
    match error:
        case ChatError() | RequestRefusedError() | ConversationFullError():
            return 400, _REFUSED
        case UnknownModelError() | UnknownAnswerError():
            return 404, "not_found_error"
        case NoEngineError() | BusError() | NoCoordinatorError() | NoRoomError():
            return 503, "overloaded_error"
        case EngineSlowError():
            return 504, "timeout_error"
        case GenerationError():
            return 502, "server_error"
        case _:
            return 500, "server_error"


def told(error: Exception) -> str:
    """Return what a client is told of an error: nothing of a fault of this program."""
    # What a client wrote may be in it, and half a character cannot be sent.
    return encodable(str(error)) if isinstance(error, TrinityError) else "internal error"


def json_response(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def _refusal(status: int, message: str, kind: str, *, retry: bool = False, param: str | None = None) -> web.Response:
    response = json_response({"type": "error", **error_body(message, kind, param)}, status)
    if retry:
        response.headers["Retry-After"] = str(_RETRY_S)
    return response
