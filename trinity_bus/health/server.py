"""``/livez`` and ``/readyz`` over HTTP, from a thread of its own: it answers while the event loop is wedged.

::

    GET /livez   200 alive | 503 why not     decided from what is known, at once
    GET /readyz  200 ready | 503 why not     asks the broker too, at most once a second
    anything else                404

Failures: a port in use is a ``ConfigError`` before the service starts. A probe that hangs up is ignored. All together
can have ``MAX_CONNECTIONS`` connections, each for ``CONNECTION_S``: the oldest makes room for the next, so that
strangers who say nothing, or a byte now and then, take neither threads nor files from the service.
"""

import asyncio
import contextlib
import http.server
import logging
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from trinity_bus import awake
from trinity_bus.bus.client.connection import check_reachable
from trinity_bus.config import HealthSettings, KafkaSettings, env_name
from trinity_bus.errors import ConfigError, TrinityError
from trinity_bus.health.state import HealthState, Verdict

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


class HealthServer:
    """Serves until closed; ConfigError where the port cannot be listened on.

    ``broker``: why the broker cannot be reached; None if it can. Called in the threads of requests.
    """

    def __init__(self, settings: HealthSettings, state: HealthState, broker: Callable[[], str | None]) -> None:
        try:
            self._server = _Server((settings.host, settings.port or 0), _handler(state, broker))
        except OSError as error:
            raise ConfigError(
                f"{env_name('health.port')}={settings.port}: cannot listen on {settings.host}: {error.strerror}; "
                "choose another port"
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    """Bounds connections, and how long each may be open."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        self._open: dict[Any, float] = {}  # connections and until when each may last, the oldest first
        self._lock = threading.Lock()
        super().__init__(address, handler)

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
