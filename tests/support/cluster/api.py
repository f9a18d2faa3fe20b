"""What tests say to a Kubernetes API, and what it answers."""

import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.mesh.waiting import wait_until

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
LIMIT_S: Final = 120.0


class Api:
    def __init__(self, url: str, certificate: Path, token: str) -> None:
        self._client = httpx.Client(
            base_url=url,
            verify=ssl.create_default_context(cafile=certificate),
            headers={"Authorization": f"Bearer {token}"},
            timeout=60.0,
            trust_env=False,
        )

    def close(self) -> None:
        self._client.close()

    def answer(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> httpx.Response:
        return self._client.request(method, path, json=body, headers={"Content-Type": kind})

    def get(self, path: str) -> Any:
        """Return a resource, or a list of them; where the server has just learned of its kind, once it has."""
        deadline = time.monotonic() + LIMIT_S
        while (answer := self.answer("GET", path)).status_code == httpx.codes.TOO_MANY_REQUESTS:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.1)
        return _sound(answer)

    def items(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(path)["items"]
        return found

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        return _sound(self.answer("POST", path, body))

    def patch(self, path: str, body: Any, kind: str = MERGE) -> Any:
        return _sound(self.answer("PATCH", path, body, kind))

    def delete(self, path: str, **options: Any) -> None:
        """Delete a resource; one that is gone is no error."""
        answer = self.answer("DELETE", path, options or None)
        if answer.status_code != httpx.codes.NOT_FOUND:
            _sound(answer)

    def wait[T](self, ask: Callable[[], T], what: str, limit_s: float = LIMIT_S) -> T:
        """Ask again and again until the answer is true, and return it."""
        found: list[T] = []

        def holds() -> bool:
            found[:] = [ask()]
            return bool(found[0])

        try:
            wait_until(holds, what, limit_s, 0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}; at last: {found}") from None
        return found[0]


def until_served(url: str, certificate: Path, limit_s: float) -> None:
    def ready() -> bool:
        try:
            context = ssl.create_default_context(cafile=certificate)
            return httpx.get(f"{url}/readyz", verify=context, trust_env=False, timeout=5.0).is_success
        # It writes its certificate, and listens, when it has come so far.
        except (httpx.TransportError, OSError):
            return False

    wait_until(ready, "API server that is ready", limit_s, 0.1)


def _sound(answer: httpx.Response) -> Any:
    assert answer.is_success, f"{answer.request.method} {answer.request.url.path}: {answer.text}"
    return answer.json()
