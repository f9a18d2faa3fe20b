"""One inference server over HTTP: requests with limits, and what its refusals mean.

=============================  ====================================================================================
what it answers                what is raised
=============================  ====================================================================================
400 to 499                     ``RequestRefusedError``, with its words
500 and more; nothing; amid    ``GenerationError``; whether it is dead finds out whoever looks after it
more than ``MAX_ANSWER_BYTES`` ``GenerationError``
compressed                     ``GenerationError``: it cannot be read, as what is no JSON
=============================  ====================================================================================
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import msgspec

from trinity_bus import awake
from trinity_bus.inference.errors import EngineError, GenerationError, RequestRefusedError
from trinity_bus.inference.server.answers import UNREADABLE

MAX_ANSWER_BYTES: Final = 64 << 20
_MAX_LINE_BYTES: Final = 1 << 20
_CONNECT_S: Final = 5.0
_DATA: Final = b"data: "


class ServerClient:
    """Asks one server at ``http://host:port``, without ``/v1``. It is opened within a running loop."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url.rstrip("/")
        # What is small as it comes, and large when it is unpacked, is not asked for, and not unpacked.
        self._headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._http: aiohttp.ClientSession | None = None

    def open(self) -> None:
        self._http = aiohttp.ClientSession(
            # vLLM's server closes what is idle for 5 s; a POST on such a connection is lost.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0),
            headers=self._headers,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            read_bufsize=_MAX_LINE_BYTES,
        )

    async def close(self) -> None:
        """Let go of its connections; requests under way fail."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def ask(self, path: str, body: Mapping[str, Any] | None = None, *, limit_s: float | None = None) -> bytes:
        """Return an answer: to a ``POST`` where there is a body, to a ``GET`` where there is none.

        Raises: see the module.
        """
        try:
            async with awake.timeout(limit_s), self._answer(path, body) as response:
                return await _whole(response)
        except TimeoutError as error:
            raise GenerationError(f"{self.url}{path} gave no answer within {limit_s:g} s") from error

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        """Yield the data of each event of a streamed answer."""
        async with self._answer(path, body) as response:
            try:
                async for line in response.content:
                    if line.startswith(_DATA) and (data := line[len(_DATA) :].strip()) != b"[DONE]":
                        yield data
            except ValueError as error:
                raise GenerationError(f"an event of {self.url} is longer than {_MAX_LINE_BYTES} bytes") from error

    @asynccontextmanager
    async def _answer(self, path: str, body: Mapping[str, Any] | None) -> AsyncGenerator[aiohttp.ClientResponse]:
        if self._http is None:
            raise EngineError("the server is not connected to, or no more")
        method = "GET" if body is None else "POST"
        try:
            async with self._http.request(method, f"{self.url}{path}", json=body, allow_redirects=False) as response:
                if response.status != 200:
                    why = f"{path}: {response.status}: {(await response.content.read(2000)).decode(errors='replace')}"
                    raise RequestRefusedError(why) if 400 <= response.status < 500 else GenerationError(why)
                yield response
        except aiohttp.ClientError as error:
            raise GenerationError(f"{self.url} does not answer: {error or type(error).__name__}") from error


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise GenerationError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def read_json[T](body: bytes, kind: type[T]) -> T:
    """Read an answer that is no response."""
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise GenerationError(f"the server's answer cannot be read: {error}") from error
