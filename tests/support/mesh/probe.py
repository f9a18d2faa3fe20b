"""Asks a service how it is, as a container's runtime does."""

import http.client
from contextlib import closing


def probe(port: int, path: str = "/readyz") -> tuple[int, str]:
    """Status and text of an answer; 0 and the reason where there is none."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error)
