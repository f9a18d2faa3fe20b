"""``python -m trinity_bus.health.probe [livez|readyz]``: asks this machine's health endpoint; for container checks.

Uses the standard library alone, so it is done in some 50 ms. Exit code 0 where the answer is 200.
"""

import http.client
import os
import sys
from typing import Final

_LIMIT_S: Final = 5.0


def main() -> None:
    """Ask, print the answer, and end with its meaning."""
    path = sys.argv[1] if len(sys.argv) > 1 else "readyz"
    port = os.environ.get("TRINITY_BUS_HEALTH__PORT")
    if not port:
        sys.exit("TRINITY_BUS_HEALTH__PORT is not set: this process serves no health endpoint")
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=_LIMIT_S)
    try:
        connection.request("GET", f"/{path}")
        response = connection.getresponse()
        sys.stdout.write(response.read().decode())
    except OSError as error:
        sys.exit(f"no answer on port {port}: {error}")
    sys.exit(0 if response.status == http.HTTPStatus.OK else 1)


if __name__ == "__main__":
    main()
