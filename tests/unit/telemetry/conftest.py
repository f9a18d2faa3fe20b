"""A collector that takes whatever is sent to it over OTLP."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest


class _Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append((self.path, body))  # type: ignore[attr-defined]  # set by the fixture
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[HTTPServer]:
    """Its ``received`` holds path and body of each request."""
    server = HTTPServer(("127.0.0.1", 0), _Collector)
    server.received = []  # type: ignore[attr-defined]  # read by the tests
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
