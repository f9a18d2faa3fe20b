"""The health of this process: one state, kept by a task of its event loop, and served where a port is set.

It is served over HTTP from a thread of its own, which answers while the event loop is wedged.

::

    GET /livez   200 alive | 503 why not     decided from what is known, at once
    GET /readyz  200 ready | 503 why not     asks the broker too, at most once a second
    anything else                404

Failures: a port in use is a ``ConfigError`` before the service starts. A probe that hangs up is ignored. All together
can have ``MAX_CONNECTIONS`` connections, each for ``CONNECTION_S``: the oldest makes room for the next, so that
strangers who say nothing, or a byte now and then, take neither threads nor files from the service.

``HealthState`` decides what is alive and ready. It is told the time.

::

    STARTING --mark_ready--> WORKING --mark_stopping--> STOPPING
    alive: within start_s     alive: the event loop has turned within wedged_s
    not ready                 ready: alive, and the broker answers     not ready

==============================  ==========  ===========
what fails                      ``/livez``  ``/readyz``
==============================  ==========  ===========
the event loop is wedged        503         503
the start takes too long        503         503
the broker is lost              200         503
what is to be read is not read  200         503
what is to be written waits     200         503
the service is stopping         200         503
==============================  ==========  ===========

A lost broker is no reason to start a process anew: that would not bring the broker back, and would throw away an engine
that took minutes to load.
"""

import asyncio
import contextlib
import http.server
import itertools
import logging
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from trinity_bus import awake
from trinity_bus.bus.client.connection import check_reachable
from trinity_bus.bus.write.outages import what_waits
from trinity_bus.config import HealthSettings, KafkaSettings, env_name
from trinity_bus.errors import ConfigError, TrinityError


class Phase(Enum):
    STARTING = auto()
    WORKING = auto()
    STOPPING = auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    ok: bool
    reason: str  # one line


class HealthState:
    """What is known of a process.

    Args:
        now: Seconds of any steady clock.
        wedged_s: The event loop must turn at least this often once the service works.
        start_s: Limit of the start, in which heavy libraries may hold the loop.
        unread_s: How long a reader may return nothing while there is something to read, or nobody tells whether.
    """

    def __init__(self, now: float, *, wedged_s: float, start_s: float, unread_s: float) -> None:
        self.phase = Phase.STARTING
        # Why what is to be written is not durable; None where it is, or soon will be.
        self.waiting: str | None = None
        self._started = self._turned = now
        self._wedged_s = wedged_s
        self._start_s = start_s
        self._unread_s = unread_s
        self._read: dict[str, float] = {}  # when each thing that is watched was found to be read last

    def turned(self, now: float) -> None:
        self._turned = now

    def reading(self, what: str, now: float, *, keeps_up: bool) -> None:
        """Note that it was looked whether something is read; since when it is not counts from the first time."""
        if keeps_up or what not in self._read:
            self._read[what] = now

    def done_reading(self, what: str) -> None:
        self._read.pop(what, None)

    def alive(self, now: float) -> Verdict:
        if self.phase is Phase.STARTING:
            age = now - self._started
            if age > self._start_s:
                return Verdict(False, f"still starting after {age:.0f} s, the limit is {self._start_s:g} s")
            return Verdict(True, "starting")
        silent = now - self._turned
        if silent > self._wedged_s:
            return Verdict(False, f"the event loop has not turned for {silent:.1f} s, limit {self._wedged_s:g} s")
        return Verdict(True, "alive")

    def ready(self, now: float, broker: str | None) -> Verdict:
        """Whether it can work now. ``broker``: why the broker cannot be reached; None if it can."""
        alive = self.alive(now)
        if not alive.ok:
            return alive
        if self.phase is not Phase.WORKING:
            return Verdict(False, self.phase.name.lower())
        if broker is not None:
            return Verdict(False, broker)
        if self.waiting is not None:
            return Verdict(False, self.waiting)
        for what, read_at in list(self._read.items()):
            if now - read_at > self._unread_s:
                return Verdict(
                    False, f"nothing was read of {what} for {now - read_at:.0f} s, the limit is {self._unread_s:g} s"
                )
        return Verdict(True, "ready")


log = logging.getLogger(__name__)

_BROKER_LIMIT_S: Final = 3.0  # below what probes usually wait
_BROKER_EVERY_S: Final = 1.0
MAX_CONNECTIONS: Final = 32
CONNECTION_S: Final = 10.0  # twice what the slowest answer takes


class BrokerCheck:
    """Asks the broker, and remembers the answer for a second: why it cannot be reached; None if it can."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._turn = threading.Lock()
        self._asked_at = float("-inf")
        self._answer: str | None = None

    def __call__(self) -> str | None:
        with self._turn:
            if awake.now() - self._asked_at >= _BROKER_EVERY_S:
                self._answer = asyncio.run(self._ask())
                self._asked_at = awake.now()
            return self._answer

    async def _ask(self) -> str | None:
        try:
            async with awake.timeout(_BROKER_LIMIT_S):
                await check_reachable(self._settings, "health")
        except TimeoutError:
            return f"the broker has not answered for {_BROKER_LIMIT_S:g} s"
        except TrinityError as error:
            return str(error)
        return None


class HealthServer(http.server.ThreadingHTTPServer):
    """Serves until closed, and bounds connections, and how long each may be open.

    ConfigError where the port cannot be listened on. ``broker``: why the broker cannot be reached; None if it can.
    Called in the threads of requests.
    """

    daemon_threads = True

    def __init__(self, settings: HealthSettings, state: HealthState, broker: Callable[[], str | None]) -> None:
        self._open: dict[Any, float] = {}  # connections and until when each may last, the oldest first
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        try:
            super().__init__((settings.host, settings.port or 0), _handler(state, broker))
        except OSError as error:
            raise ConfigError(
                f"{env_name('health.port')}={settings.port}: cannot listen on {settings.host}: {error.strerror}; "
                "choose another port"
            ) from error
        self.port: int = self.server_address[1]
        self._thread = threading.Thread(target=self.serve_forever, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            while len(self._open) >= MAX_CONNECTIONS:
                self._hang_up(next(iter(self._open)))
            self._open[request] = awake.now() + CONNECTION_S
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        # Called twice a second.
        now = awake.now()
        with self._lock:
            for request in [request for request, until in self._open.items() if until < now]:
                self._hang_up(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        log.debug("a probe from %s was not answered: %r", client_address, sys.exception())

    def _hang_up(self, request: Any) -> None:
        # Its thread wakes up, and closes it.
        del self._open[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


def _handler(state: HealthState, broker: Callable[[], str | None]) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        server_version = "trinity-bus"
        sys_version = ""
        timeout = 10.0

        def do_GET(self) -> None:
            match self.path:
                case "/livez":
                    self._answer(state.alive(awake.now()))
                case "/readyz":
                    self._answer(state.ready(awake.now(), broker()))
                case _:
                    self.send_error(404)

        def _answer(self, verdict: Verdict) -> None:
            body = f"{verdict.reason}\n".encode()
            self.send_response(200 if verdict.ok else 503)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            log.debug(format, *args)

    return Handler


_TURN_S: Final = 0.5

_state: HealthState | None = None
_watched: dict[str, Callable[[], Awaitable[bool]]] = {}


def mark_ready() -> None:
    """Note that the service works now. Without a health endpoint this does nothing."""
    if _state is not None:
        _state.phase = Phase.WORKING


@contextmanager
def watching(what: str, keeps_up: Callable[[], Awaitable[bool]]) -> Iterator[None]:
    """For the length of the block this process is not ready when something that it is to read is not read for long.

    Args:
        what: Such as ``"the inputs"``, for people.
        keeps_up: Whether something was read since the last call, or there was nothing to read. Never raises.
    """
    numbered = (what if number == 1 else f"{what} ({number})" for number in itertools.count(1))
    name = next(one for one in numbered if one not in _watched)
    _watched[name] = keeps_up
    try:
        yield
    finally:
        del _watched[name]
        if _state is not None:
            _state.done_reading(name)


async def readings() -> dict[str, bool]:
    return {what: await keeps_up() for what, keeps_up in list(_watched.items())}


@asynccontextmanager
async def serving(settings: HealthSettings, kafka: KafkaSettings) -> AsyncIterator[None]:
    """Answer probes for the length of the block, where a port is set; ConfigError where it cannot be listened on."""
    global _state  # noqa: PLW0603 - there is one process, and its health is one thing
    if settings.port is None:
        yield
        return
    state = _state = HealthState(
        awake.now(), wedged_s=settings.wedged_s, start_s=settings.start_s, unread_s=settings.unread_s
    )
    server = HealthServer(settings, state, BrokerCheck(kafka))
    turning = asyncio.create_task(_turn(state), name="health")
    try:
        yield
    finally:
        state.phase = Phase.STOPPING
        turning.cancel()
        server.close()
        _state = None


async def _turn(state: HealthState) -> None:
    while True:
        state.turned(awake.now())
        state.waiting = what_waits()
        for what, is_read in (await readings()).items():
            if what in _watched:
                state.reading(what, awake.now(), keeps_up=is_read)
        await asyncio.sleep(_TURN_S)
