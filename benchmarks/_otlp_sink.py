"""A program that takes OTLP over HTTP and throws it away: prints its port, and on SIGTERM what it was.

The figures are one line of JSON: ``spans``, and the bytes that came to each path.
"""

import gzip
import json
import signal
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACES = "/v1/traces"


def main() -> None:
    """Serve until SIGTERM. What was sent is unpacked at the end, not while others are measured."""
    received: Counter[str] = Counter()
    bodies: list[tuple[bool, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received[self.path] += len(body)
            if self.path == TRACES:
                bodies.append((self.headers.get("content-encoding") == "gzip", body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(server.server_port, flush=True)
    server.serve_forever()
    for packed, body in bodies:
        request = ExportTraceServiceRequest.FromString(gzip.decompress(body) if packed else body)
        for resource in request.resource_spans:
            received["spans"] += sum(len(scope.spans) for scope in resource.scope_spans)
    print(json.dumps(received), flush=True)


if __name__ == "__main__":
    main()
