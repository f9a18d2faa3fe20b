"""HTTP servers of this machine that a test answers with."""

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from tests.support.mesh.ports import quiet_ports
from tests.support.mesh.waiting import until


class Answering(BaseHTTPRequestHandler):
    """Has subclasses reply to whatever is asked; nothing is logged."""

    def reply(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.reply()

    def do_POST(self) -> None:
        self.reply()

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Have a handler answer beside the block; yields the server's address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@asynccontextmanager
async def served_by(program: str) -> AsyncIterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Run a program of ``tests/support/servers``, which answers at a port; yields its address and its process."""
    (port,) = quiet_ports(1)

    def answers() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    with subprocess.Popen([sys.executable, str(Path(__file__).parents[1] / "servers" / program), str(port)]) as process:
        try:
            await until(lambda: process.poll() is not None or answers())
            assert process.poll() is None, f"{program} has ended"
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.kill()
