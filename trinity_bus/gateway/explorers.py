"""Asks explorers over HTTP: another one where one fails, from the last token on where some were drawn.

::

    draw --> CHOOSING --Router--> ASKING --whole answer--> done
                ^  '--nobody for engine_wait_s--> NoEngineError
                |                    |--429, its engine bears no more--> CHOOSING; all of them for wait_s: NoEngineError
                '--no answer, 503 ---'--cut off, tokens known--> CHOOSING, with these tokens after the prompt

Who is asked for the first time, or again after it was gone or lost, or ten seconds after its last proof, proves before
that it is who its heartbeat says (``fleet``): nothing is sent to others, the key least of all. What is left is
an address that becomes a stranger's within those seconds, of an explorer that ended without a word.

A request that is not streamed is drawn anew by the next explorer. Of one that is, the tokens that have arrived are
kept: the next explorer is asked with prompt and tokens, for the rest. That is one draw from the same policies, unless
what is drawn depends on the response as a whole (several responses, stop texts, penalties, a seed): then it fails.
Tokens of an explorer that was cut off are of the version that it said it served when it sent them.

What answers a conversation, or says how likely tokens are, comes in one piece, and is asked of another where one fails.

Failures: ``NoEngineError``, ``EngineSlowError``, ``RequestRefusedError``, ``GenerationError``, of
``trinity_bus.inference.errors``; a gateway tells them as 503, 504, 400 and 502.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import aiohttp

from schemas import ExplorerHeartbeat, ExplorerLeft
from schemas.sampling import Sampling
from schemas.topic import TRACEPARENT
from trinity_bus import awake
from trinity_bus.chat import wire
from trinity_bus.chat.messages import Completion
from trinity_bus.gateway.fleet import Router, ServingExplorer, ServingFleet
from trinity_bus.inference.errors import EngineSlowError, GenerationError, NoEngineError, RequestRefusedError
from trinity_bus.inference.sampling import can_go_on, check_count
from trinity_bus.runtime.frames import ProtocolError
from trinity_bus.runtime.service import unless_small
from trinity_bus.telemetry import traceparent

_log = logging.getLogger(__name__)

_MOST_TRIES: Final = 4  # of one request
_ALL_FAILED: Final = f"{_MOST_TRIES} explorers have failed on it, one after the other"
_LOOK_S: Final = 0.1  # how often it is looked for an explorer while there is none
_BUSY_S: Final = 0.5  # how long an explorer is not asked whose engine bore no more
_CONNECT_S: Final = 5.0
_PROVED_S: Final = 10.0  # how long it is believed what an explorer has proved
_MOST_ANSWER: Final = 100  # bytes of a proof that are read; it has 64


class _CutOffError(Exception):
    """An explorer did not answer, or not to the end: ask another."""


class _BusyError(_CutOffError):
    """An explorer has all that its engine bears: ask another, or the same later."""


@dataclass(slots=True)
class _Tries:
    failed: set[str] = field(default_factory=set)
    lost: int = 0  # how often its explorer was lost
    busy_since: float | None = None  # when an explorer was too busy first
    settled: int = 0  # how many tokens are of explorers that were cut off
    moved: bool = False  # whether another explorer was asked than one that was lost


type OnDrawn = Callable[[int, list[int]], Awaitable[None]]  # told which response has got which new tokens


class Explorers:
    """Those of one pool. An async context manager. A request waits ``wait_s`` where there is no explorer.

    ``max_tokens``: of responses whose sampling names none. ``trained``: whether responses may be.
    """

    def __init__(
        self,
        fleet: ServingFleet,
        *,
        key: str,
        wait_s: float,
        timeout_s: float,
        max_tokens: int | None = None,
        trained: bool = False,
    ) -> None:
        self._fleet = fleet
        self._key = key
        self._wait_s = wait_s
        self._timeout_s = timeout_s
        self._max_tokens = max_tokens
        self._trained = trained
        self._router = Router()
        self._requests: Counter[str] = Counter()
        self._client: aiohttp.ClientSession | None = None
        # Who has proved to be there, by name, until they are lost: which arrival of theirs, and when.
        self._met: dict[str, tuple[int, float]] = {}
        # Who is not asked, by name, and until when: its engine bore no more.
        self._busy: dict[str, float] = {}
        self.busy = 0  # requests that an explorer did not take, because its engine bore no more
        self.moved = 0  # requests that were given to another explorer because one failed

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @property
    def usable(self) -> list[ServingExplorer]:
        return self._fleet.usable(awake.now())

    @property
    def requests(self) -> dict[str, int]:
        return {name: count for name, count in self._requests.items() if count}

    async def draw(
        self, prompt: Sequence[int], sampling: Sampling, n: int = 1, on_drawn: OnDrawn | None = None
    ) -> list[Completion]:
        """Return ``n`` responses to a prompt.

        ``on_drawn`` is told of tokens as they come; None where they are wanted at the end alone. Raises the errors that
        the module names.
        """
        check_count(n)
        drawings = [Completion() for _ in range(n)]
        async with self._in_time():
            await self._draw(prompt, self._limited(sampling), drawings, on_drawn)
        return drawings

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling: Sampling, n: int = 1, traceparent: str | None = None
    ) -> list[Completion]:
        """As ``draw``, for workflows that ask another model: its routes are nothing to them."""
        del traceparent
        return [replace(one, routes=None) for one in await self.draw(prompt_token_ids, sampling, n)]

    async def chat(self, messages: bytes, sampling: Sampling) -> str:
        """Return the answer to a conversation, OpenAI's messages as JSON; raises as ``draw`` does."""
        frame = await self._one(wire.ChatAsk(messages, wire.sampling_bytes(self._limited(sampling))), [])
        if not isinstance(frame, wire.SaidFrame):
            raise GenerationError("an explorer answered a conversation with something else")
        return frame.text

    async def score(self, token_ids: Sequence[int], start: int) -> list[float]:
        """Return how likely each token of a sequence is, from ``start`` (at least 1) on; raises as ``draw`` does."""
        frame = await self._one(wire.ScoreAsk(wire.token_bytes(token_ids), start), token_ids)
        logprobs = wire.logprobs_of(frame.logprobs) if isinstance(frame, wire.ScoredFrame) else []
        if len(logprobs) != len(token_ids) - start:
            raise GenerationError(f"{len(logprobs)} log-probabilities for {len(token_ids) - start} tokens")
        return logprobs

    def _limited(self, sampling: Sampling) -> Sampling:
        if sampling.max_tokens is not None or self._max_tokens is None:
            return sampling
        return sampling.model_copy(update={"max_tokens": self._max_tokens})

    def heard(self, event: Any) -> None:
        match event:
            case ExplorerHeartbeat():
                self._fleet.heard(event, awake.now(), own=self._requests[event.explorer])
            case ExplorerLeft():
                self._fleet.left(event)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with awake.timeout(self._timeout_s) as limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise EngineSlowError(f"no answer within {self._timeout_s:g} s") from error

    @asynccontextmanager
    async def _asking(self, prompt: Sequence[int], tries: _Tries) -> AsyncIterator[ServingExplorer]:
        """Provide whom to ask, and count it; one that is lost within, or too busy, is noted."""
        explorer = await self._choose(prompt, tries.failed)
        if tries.failed and explorer.name not in tries.failed and not tries.moved:
            tries.moved = True
            self.moved += 1
        self._requests[explorer.name] += 1
        try:
            yield explorer
        except _BusyError as error:
            now = awake.now()
            self.busy += 1
            self._busy[explorer.name] = now + _BUSY_S
            tries.busy_since = now if tries.busy_since is None else tries.busy_since
            if now - tries.busy_since >= self._wait_s:
                raise NoEngineError("the explorers have all that their engines bear") from error
            raise
        except _CutOffError as error:
            _log.warning("explorer %s was lost to a request: %s", explorer.name, error)
            tries.failed.add(explorer.name)
            tries.lost += 1
            # Whoever is asked next is asked for the first time.
            tries.busy_since = None
            self._fleet.doubt(explorer.name)
            self._met.pop(explorer.name, None)
            raise
        finally:
            self._requests[explorer.name] -= 1

    async def _one(self, ask: wire.AnyAsk, prompt: Sequence[int]) -> wire.Frame:
        tries = _Tries()
        async with self._in_time():
            while tries.lost < _MOST_TRIES:
                with suppress(_CutOffError):
                    async with (
                        self._asking(prompt, tries) as explorer,
                        aclosing(self._frames(explorer, ask)) as frames,
                    ):
                        async for frame in frames:
                            return frame
                        raise _CutOffError("it ended without an answer")
        raise GenerationError(_ALL_FAILED)

    async def _draw(
        self, prompt: Sequence[int], sampling: Sampling, drawings: list[Completion], on_drawn: OnDrawn | None
    ) -> None:
        tries = _Tries()
        while tries.lost < _MOST_TRIES:
            so_far = drawings[0].token_ids
            rest = sampling
            if so_far:
                if len(drawings) > 1 or not can_go_on(sampling):
                    raise GenerationError("the explorer was lost amid the answer, which cannot be gone on with")
                rest = sampling.model_copy(update={"max_tokens": (sampling.max_tokens or 1) - len(so_far)})
                tries.settled = len(so_far)
            with suppress(_CutOffError):
                async with self._asking([*prompt, *so_far], tries) as explorer:
                    await self._ask(explorer, [*prompt, *so_far], rest, drawings, on_drawn, settled=tries.settled)
                    return
            if on_drawn is None:
                drawings[:] = [Completion() for _ in drawings]
            if drawings[0].token_ids and len(drawings[0].token_ids) == sampling.max_tokens:
                # Cut off between the last token and the word that it was the last.
                drawings[0].finish_reason = "length"
                return
        raise GenerationError(_ALL_FAILED)

    async def _choose(self, prompt: Sequence[int], failed: set[str]) -> ServingExplorer:
        """Wait until there is somebody to ask; first those that have not failed on this request."""
        until = awake.now() + self._wait_s
        while True:
            now = awake.now()
            usable = [one for one in self.usable if self._busy.get(one.name, 0.0) <= now]
            fresh = [one for one in usable if one.name not in failed]
            chosen = self._router.choose(prompt, fresh or usable, self._requests)
            if chosen is not None:
                return chosen
            if awake.now() >= until:
                raise NoEngineError("there is no explorer that could answer")
            await asyncio.sleep(_LOOK_S)

    async def _ask(
        self,
        explorer: ServingExplorer,
        prompt: Sequence[int],
        sampling: Sampling,
        drawings: list[Completion],
        on_drawn: OnDrawn | None,
        *,
        settled: int,
    ) -> None:
        ask = wire.Ask(
            wire.token_bytes(prompt), wire.sampling_bytes(sampling), len(drawings), on_drawn is not None, self._trained
        )
        async with aclosing(self._frames(explorer, ask)) as frames:
            async for frame in frames:
                if isinstance(frame, wire.FailedFrame):
                    raise GenerationError(frame.reason)
                if not isinstance(frame, wire.DrawnFrame):
                    raise GenerationError("an explorer answered a prompt with something else")
                if frame.index >= len(drawings):
                    raise GenerationError(f"a token of response {frame.index} of {len(drawings)}")
                drawing = drawings[frame.index]
                new = wire.take_frame(drawing, frame, settled)
                if len(drawing.token_ids) - settled > (sampling.max_tokens or 1):
                    raise GenerationError(f"more than the {sampling.max_tokens} tokens that were asked for")
                run = len(prompt) + len(drawing.token_ids) - settled - 1
                if drawing.routes is not None and len(drawing.routes) != run:
                    raise GenerationError(f"routes of {len(drawing.routes)} tokens, where the engine has run {run}")
                if on_drawn is not None and new:
                    await on_drawn(frame.index, new)
        if not all(one.finish_reason for one in drawings):
            raise _CutOffError("it ended amid the answer")

    async def _frames(self, explorer: ServingExplorer, ask: wire.AnyAsk) -> AsyncGenerator[wire.Frame]:
        if self._client is None:
            raise NoEngineError("this process is shutting down")
        try:
            body = wire.ASKS.encode(ask)
        except ProtocolError as error:
            raise RequestRefusedError(str(error)) from error
        frames = wire.frame_reader()
        parent = traceparent()
        try:
            await self._meet(explorer, self._client)
            async with self._client.post(
                f"http://{explorer.address}{wire.PATH}",
                data=body,
                headers={"Authorization": f"Bearer {self._key}"} | ({TRACEPARENT: parent} if parent else {}),
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    await self._refused(explorer, response)
                async for chunk in response.content.iter_any():
                    for whole in frames.feed(chunk):
                        yield await unless_small(len(whole), wire.decode_frame, whole)
        except (aiohttp.ClientError, OSError, ProtocolError) as error:
            raise _CutOffError(str(error) or type(error).__name__) from error

    async def _meet(self, explorer: ServingExplorer, client: aiohttp.ClientSession) -> None:
        """Have an explorer prove that it is there, unless it has just done so."""
        arrival, proved_at = self._met.get(explorer.name, (-1, 0.0))
        asked_at = awake.now()
        if arrival == explorer.arrival and asked_at - proved_at < _PROVED_S:
            return
        nonce = secrets.token_hex(16)
        try:
            async with (
                awake.timeout(_CONNECT_S),
                client.get(
                    f"http://{explorer.address}{wire.PROOF_PATH}", params={"nonce": nonce}, allow_redirects=False
                ) as response,
            ):
                answer = (await response.content.read(_MOST_ANSWER)).decode("ascii", errors="replace")
        except TimeoutError as error:
            raise _CutOffError(f"{explorer.address} does not say who it is") from error
        if not explorer.presence.is_proved(answer, nonce, self._key):
            raise _CutOffError(
                f"{explorer.address} does not prove to be it: its heartbeat was an old one, written again, or it is of "
                "an earlier version"
            )
        self._met[explorer.name] = explorer.arrival, asked_at

    async def _refused(self, explorer: ServingExplorer, response: aiohttp.ClientResponse) -> None:
        why = (await response.content.read(1000)).decode(errors="replace")
        match response.status:
            case 400 | 413:
                raise RequestRefusedError(why)
            case 500:
                raise GenerationError(why)
            case 429:
                raise _BusyError(why)
            case 401:
                _log.error("explorer %s does not know this key: explorer.http_key differs", explorer.name)
        raise _CutOffError(f"it answered {response.status}: {why}")
