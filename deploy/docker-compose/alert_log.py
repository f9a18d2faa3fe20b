"""The receiver of alerts of a stack that has no other: one line for each, on standard output.

Alertmanager posts JSON (its webhook, version 4). A line says when, firing or resolved, how bad, which, and what::

    2026-01-31T12:00:00Z firing critical NoTrainer: No trainer reports, ... (docs/operations.md#notrainer)

What cannot be read is refused with 400, so that Alertmanager counts it as not delivered.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 8080
MAX_BYTES = 4 << 20
READ_LIMIT_S = 10.0


def lines(message: Any) -> list[str]:
    """Return what is said of one message.

    Raises:
        ValueError: It is not what Alertmanager sends.
    """
    try:
        return [_line(alert) for alert in message["alerts"]]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a message of Alertmanager: {error}") from error


def _line(alert: dict[str, Any]) -> str:
    labels, notes, status = alert["labels"], alert["annotations"], alert["status"]
    at = alert["endsAt"] if status == "resolved" else alert["startsAt"]
    said = f"{at[:19]}Z {status} {labels['severity']} {labels['alertname']}: {notes['summary']}"
    said += f". {notes['description']}" if notes.get("description") else ""
    said += f" ({notes['runbook']})" if notes.get("runbook") else ""
    # What a label holds may come from a record: one alert stays one line.
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in said)


class Receiver(BaseHTTPRequestHandler):
    """Takes what Alertmanager posts."""

    timeout = READ_LIMIT_S

    def do_POST(self) -> None:
        """Says it, and acknowledges."""
        try:
            said = lines(json.loads(self._body()))
        except (ValueError, RecursionError) as error:
            self.send_error(400, ascii(str(error))[:200])
            return
        for line in said:
            print(line, flush=True)
        self.send_response(204)
        self.end_headers()

    def _body(self) -> bytes:
        size = int(self.headers.get("Content-Length", "-1"))
        if not 0 <= size <= MAX_BYTES:
            raise ValueError(f"a message of {size} bytes")
        return self.rfile.read(size)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the class above
        """Request that are refused are said, and no others."""

    def log_error(self, format: str, *args: Any) -> None:  # noqa: A002 - likewise
        """Why one was refused."""
        print(format % args, file=sys.stderr, flush=True)


def main() -> None:
    """Listen until it is told to end."""
    ThreadingHTTPServer(("", PORT), Receiver).serve_forever()


if __name__ == "__main__":
    main()
