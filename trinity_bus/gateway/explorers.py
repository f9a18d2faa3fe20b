"""Asks explorers over HTTP: another one where one fails, from the last token on where some were drawn.

::

    draw --> CHOOSING --Router--> ASKING --whole answer--> done
                ^  '--nobody for engine_wait_s--> NoEngineError
                |                    |
                '--no answer, 503 ---'--cut off, tokens known--> CHOOSING, with these tokens after the prompt

A request that is not streamed is drawn anew by the next explorer. Of one that is, the tokens that have arrived are
kept: the next explorer is asked with prompt and tokens, for the rest. That is one draw from the same policies, unless
what is drawn depends on the response as a whole (several responses, stop texts, penalties, a seed): then it fails.
Tokens of an explorer that was cut off are of the version that it said it served when it sent them.

Failures: ``NoEngineError`` 503, ``EngineSlowError`` 504, ``EngineRefusedError`` 400, ``EngineFailedError`` 502.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import aiohttp

from schemas.sampling import Sampling
from trinity_bus.errors import TrinityError
from trinity_bus.gateway import wire
from trinity_bus.gateway.fleet import ServingExplorer, ServingFleet
from trinity_bus.gateway.routing import Router

_log = logging.getLogger(__name__)

_MOST_TRIES: Final = 4
"""Of one request."""
_LOOK_S: Final = 0.1
"""How often it is looked for an explorer while there is none."""
_CONNECT_S: Final = 5.0


class EngineFailedError(TrinityError):
    """Explorers have begun an answer, and none has finished it."""


class NoEngineError(TrinityError):
    """There is no explorer to ask."""


class EngineSlowError(TrinityError, TimeoutError):
    """No answer came within the limit."""


class EngineRefusedError(TrinityError, ValueError):
    """The engine cannot serve this request: the prompt is too long, or a parameter out of range."""


class _CutOffError(Exception):
    """An explorer did not answer, or not to the end: ask another."""


@dataclass(slots=True)
class Drawing:
    """One response, as far as it has been drawn."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    """(first token, version)"""
    finish_reason: str = ""
    """Empty while it goes on."""
    settled: int = 0
    """How many of its tokens are of explorers that were cut off."""

    def add(self, frame: wire.DrawnFrame) -> list[int]:
        """Take what has come; return its tokens."""
        new = wire.tokens_of(frame.token_ids)
        self._note(len(self.token_ids), frame.version)
        self.token_ids += new
        self.logprobs += wire.logprobs_of(frame.logprobs)
        if frame.finish_reason is not None:
            self.finish_reason = frame.finish_reason
            self.versions = [span for span in self.versions if span[0] < self.settled]
            for start, version in frame.versions:
                self._note(self.settled + start, version)
        return new

    def _note(self, start: int, version: int) -> None:
        if version >= 0 and (not self.versions or self.versions[-1][1] != version):
            self.versions.append((start, version))


type OnDrawn = Callable[[int, list[int]], Awaitable[None]]
"""Told which response has got which new tokens."""


class Explorers:
    """Those of one pool. An async context manager.

    Args:
        fleet: Who can be asked.
        key: Of the explorers.
        wait_s: How long a request waits for an explorer where there is none.
        timeout_s: Limit of an answer.
    """

    def __init__(self, fleet: ServingFleet, *, key: str, wait_s: float, timeout_s: float) -> None:
        self._fleet = fleet
        self._headers = {"Authorization": f"Bearer {key}"}
        self._wait_s = wait_s
        self._timeout_s = timeout_s
        self._router = Router()
        self._requests: Counter[str] = Counter()
        self._client: aiohttp.ClientSession | None = None
        self.moved = 0
        """Requests that were given to another explorer because one failed."""

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @property
    def usable(self) -> list[ServingExplorer]:
        """Those that can be asked now."""
        return self._fleet.usable(time.monotonic())

    @property
    def requests(self) -> dict[str, int]:
        """How many requests of this gateway each works on."""
        return {name: count for name, count in self._requests.items() if count}

    async def draw(
        self, prompt: Sequence[int], sampling: Sampling, n: int = 1, on_drawn: OnDrawn | None = None
    ) -> list[Drawing]:
        """Return ``n`` responses to a prompt.

        Args:
            prompt: Token ids.
            sampling: How; ``max_tokens`` is named.
            n: How many.
            on_drawn: Told of tokens as they come; None where they are wanted at the end alone.

        Raises:
            NoEngineError: There is no explorer.
            EngineSlowError: The time is up.
            EngineRefusedError: The engine does not take it.
            EngineFailedError: The engine failed on it.
        """
        drawings = [Drawing() for _ in range(n)]
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                await self._draw(prompt, sampling, drawings, on_drawn)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise EngineSlowError(f"no answer within {self._timeout_s:g} s") from error
        return drawings

    async def _draw(
        self, prompt: Sequence[int], sampling: Sampling, drawings: list[Drawing], on_drawn: OnDrawn | None
    ) -> None:
        failed: set[str] = set()
        for attempt in range(_MOST_TRIES):
            so_far = drawings[0].token_ids
            rest = sampling
            if so_far:
                if not _can_go_on(sampling, len(drawings)):
                    raise EngineFailedError("the explorer was lost amid the answer, which cannot be gone on with")
                rest = sampling.model_copy(update={"max_tokens": (sampling.max_tokens or 1) - len(so_far)})
                drawings[0].settled = len(so_far)
            explorer = await self._choose([*prompt, *so_far], failed)
            self.moved += attempt > 0
            self._requests[explorer.name] += 1
            try:
                await self._ask(explorer, [*prompt, *so_far], rest, drawings, on_drawn)
            except _CutOffError as error:
                _log.warning("explorer %s was lost to a request: %s", explorer.name, error)
                failed.add(explorer.name)
                self._fleet.doubt(explorer.name)
                if on_drawn is None:
                    drawings[:] = [Drawing() for _ in drawings]
            else:
                return
            finally:
                self._requests[explorer.name] -= 1
            if drawings[0].token_ids and len(drawings[0].token_ids) == sampling.max_tokens:
                # Cut off between the last token and the word that it was the last.
                drawings[0].finish_reason = "length"
                return
        raise EngineFailedError(f"{_MOST_TRIES} explorers have failed on it, one after the other")

    async def _choose(self, prompt: Sequence[int], failed: set[str]) -> ServingExplorer:
        """Wait until there is somebody to ask; first those that have not failed on this request."""
        until = time.monotonic() + self._wait_s
        while True:
            usable = self.usable
            fresh = [one for one in usable if one.name not in failed]
            chosen = self._router.choose(prompt, fresh or usable, self._requests)
            if chosen is not None:
                return chosen
            if time.monotonic() >= until:
                raise NoEngineError("there is no explorer that could answer")
            await asyncio.sleep(_LOOK_S)

    async def _ask(
        self,
        explorer: ServingExplorer,
        prompt: Sequence[int],
        sampling: Sampling,
        drawings: list[Drawing],
        on_drawn: OnDrawn | None,
    ) -> None:
        ask = wire.Ask(
            prompt=wire.token_bytes(prompt),
            sampling=sampling.model_dump(exclude_none=True),
            n=len(drawings),
            stream=on_drawn is not None,
        )
        async with aclosing(self._frames(explorer, ask)) as frames:
            async for frame in frames:
                if isinstance(frame, wire.FailedFrame):
                    raise EngineFailedError(frame.reason)
                if frame.index >= len(drawings):
                    raise EngineFailedError(f"a token of response {frame.index} of {len(drawings)}")
                drawing = drawings[frame.index]
                new = drawing.add(frame)
                if len(drawing.token_ids) - drawing.settled > (sampling.max_tokens or 1):
                    raise EngineFailedError(f"more than the {sampling.max_tokens} tokens that were asked for")
                if on_drawn is not None and new:
                    await on_drawn(frame.index, new)
        if not all(one.finish_reason for one in drawings):
            raise _CutOffError("it ended amid the answer")

    async def _frames(self, explorer: ServingExplorer, ask: wire.Ask) -> AsyncGenerator[wire.Frame]:
        """Yield what an explorer answers.

        Raises:
            EngineRefusedError, EngineFailedError: As ``draw``.
            _CutOffError: It does not answer.
        """
        if self._client is None:
            raise NoEngineError("the gateway is shutting down")
        frames = wire.FrameFeed()
        try:
            async with self._client.post(
                f"http://{explorer.address}{wire.PATH}", data=wire.encode_ask(ask), allow_redirects=False
            ) as response:
                if response.status != 200:
                    await self._refused(response)
                async for chunk in response.content.iter_any():
                    for frame in frames.feed(chunk):
                        yield frame
        except (aiohttp.ClientError, OSError, wire.AskError) as error:
            raise _CutOffError(str(error) or type(error).__name__) from error

    async def _refused(self, response: aiohttp.ClientResponse) -> None:
        why = (await response.content.read(1000)).decode(errors="replace")
        match response.status:
            case 400 | 413:
                raise EngineRefusedError(why)
            case 500:
                raise EngineFailedError(why)
            case 401:
                _log.error("an explorer does not know this gateway's key: explorer.http_key differs")
        raise _CutOffError(f"it answered {response.status}: {why}")


def _can_go_on(sampling: Sampling, n: int) -> bool:
    """Whether the rest of a response is drawn as it would have been, without the explorer that has begun it."""
    depends = (sampling.stop, sampling.seed, sampling.ignore_eos and sampling.min_tokens)
    return n == 1 and not sampling.altered_by and not any(depends)
