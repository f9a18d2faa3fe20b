"""``/livez`` and ``/readyz`` over HTTP, from a thread of its own: it answers while the event loop is wedged.

::

    GET /livez   200 alive | 503 why not     decided from what is known, at once
    GET /readyz  200 ready | 503 why not     asks the broker too, at most once a second
    anything else                404

Failures: a port in use is a ``ConfigError`` before the service starts. A probe that hangs up is ignored.
"""

import asyncio
import http.server
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from trinity_bus.bus.connection import check_reachable
from trinity_bus.config import HealthSettings, KafkaSettings, env_name
from trinity_bus.errors import ConfigError, TrinityError
from trinity_bus.health.state import HealthState, Verdict

log = logging.getLogger(__name__)

_BROKER_LIMIT_S: Final = 3.0
"""The broker must answer within this time. Below what probes usually wait."""
_BROKER_EVERY_S: Final = 1.0


class BrokerCheck:
    """Asks the broker, and remembers the answer for a second."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._turn = threading.Lock()
        self._asked_at = float("-inf")
        self._answer: str | None = None

    def __call__(self) -> str | None:
        """Why it cannot be reached; None if it can."""
        with self._turn:
            if time.monotonic() - self._asked_at >= _BROKER_EVERY_S:
                self._answer = asyncio.run(self._ask())
                self._asked_at = time.monotonic()
            return self._answer

    async def _ask(self) -> str | None:
        try:
            async with asyncio.timeout(_BROKER_LIMIT_S):
                await check_reachable(self._settings, "health")
        except TimeoutError:
            return f"the broker has not answered for {_BROKER_LIMIT_S:g} s"
        except TrinityError as error:
            return str(error)
        return None


class HealthServer:
    """Serves until closed.

    Args:
        settings: Where to listen; the port is set.
        state: What is known of the process.
        broker: Why the broker cannot be reached; None if it can. Called in the threads of requests.

    Raises:
        ConfigError: The port cannot be listened on.
    """

    def __init__(self, settings: HealthSettings, state: HealthState, broker: Callable[[], str | None]) -> None:
        try:
            self._server = http.server.ThreadingHTTPServer((settings.host, settings.port or 0), _handler(state, broker))
        except OSError as error:
            raise ConfigError(
                f"{env_name('health.port')}={settings.port}: cannot listen on {settings.host}: {error.strerror}; "
                "choose another port"
            ) from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(state: HealthState, broker: Callable[[], str | None]) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        server_version = "trinity-bus"
        sys_version = ""
        timeout = 10.0

        def do_GET(self) -> None:
            match self.path:
                case "/livez":
                    self._answer(state.alive(time.monotonic()))
                case "/readyz":
                    self._answer(state.ready(time.monotonic(), broker()))
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
