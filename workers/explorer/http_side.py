"""The explorer's HTTP side: what gateways, and explorers of other pools, ask of its engine, past the log.

::

    who asks --POST, key--> OPEN --/generate--> engine.generate or .stream --> frames (``trinity_bus.gateway.wire``)
                              |  '-/chat------> written by this model's tokenizer --> engine.generate --> text
                              |  '-/score-----> engine.score --> log-probabilities
                              |--the engine bears no more--> 429: whoever asks has others to ask, or waits
                              '--drain()--> DRAINING: new requests are 503, those under way have their time

It answers while weights arrive: the engine goes on generating then. A client that goes away takes its request along:
the engine stops drawing it.

============================  ==========================================================================================
what fails                    what it gets that asks
============================  ==========================================================================================
no key, or a wrong one        401
no request, or one too long   400, 413
the engine is congested       429, but for the first ``explorer.min_slots``
what the engine refuses, or   400
no chat template writes
a response is not finished    500; amid a stream, a last frame that says so
the engine is dead            503; this process ends anyway
============================  ==========================================================================================
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from aiohttp import web
from pydantic import ValidationError

from schemas import ExplorerHeartbeat
from schemas.sampling import Sampling
from trinity_bus import awake
from trinity_bus.chat import ChatError, Completion, Prompt, Renderer, Session, Tokenizer, renderer_for
from trinity_bus.chat.openai import check_parts
from trinity_bus.config import ExplorerSettings, required
from trinity_bus.gateway import wire
from trinity_bus.gateway.address_proof import Presence, presence_of, with_proof
from trinity_bus.inference.concurrency import ConcurrencyController
from trinity_bus.inference.errors import EngineDeadError, GenerationError, RequestRefusedError
from trinity_bus.runners.engine import ExplorerEngine
from trinity_bus.runtime.frames import UNREADABLE, ProtocolError
from trinity_bus.runtime.http import Room, in_thread, listening, read_body, shows_key
from workers.explorer.weights import ServedVersion

_CLOSE_S: Final = 0.1  # how long requests may still take when it is closed; 0 would be without end

_BODY_S: Final = 60.0  # In which the body of a request must come: a peer that has vanished amid one would keep its room
_FEW: Final = 1 << 16  # tokens that are left to the engine to refuse
_MESSAGES: Final = msgspec.json.Decoder(list[dict[str, Any]])

type _Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpSide:
    """Answers gateways. An async context manager: it is open within.

    ``tokenizer`` loads the model's, when the first conversation comes.
    """

    def __init__(
        self,
        settings: ExplorerSettings,
        engine: ExplorerEngine,
        served: ServedVersion,
        bearable: ConcurrencyController,
        tokenizer: Callable[[], Tokenizer],
    ) -> None:
        key = required(settings.http_key, "explorer.http_key", "to know gateways by")
        self._key = key.get_secret_value()
        self._engine = engine
        self._served = served
        self._bearable = bearable
        self._load = tokenizer
        self._presence: Presence | None = None
        self._renderer: Renderer | None = None
        self._writing = asyncio.Lock()
        self._room = Room(2 * wire.MAX_ASK_BYTES)
        self._longest = settings.max_model_len
        self._draining = False
        self._under_way: set[asyncio.Task[object]] = set()
        app = web.Application(client_max_size=wire.MAX_ASK_BYTES)
        for path, answer in ((wire.PATH, self._generate), (wire.CHAT_PATH, self._chat), (wire.SCORE_PATH, self._score)):
            app.router.add_post(path, self._guarded(answer))
        app.router.add_get(wire.PROOF_PATH, self._prove)
        self._listening = listening(
            app,
            settings.http_host,
            required(settings.http_port, "explorer.http_port", "to know where to listen"),
            setting="explorer.http_host and http_port",
            shutdown_s=_CLOSE_S,
        )
        self.address = ""  # ``host:port``, as gateways reach it

    @property
    def requests(self) -> int:
        return len(self._under_way)

    def told(self, beat: ExplorerHeartbeat) -> ExplorerHeartbeat:
        """Return a heartbeat that tells of the address, and of the load; who sends it is who answers there."""
        more = {"address": self.address, "http_requests": self.requests}
        told = with_proof(beat.model_copy(update=more), self._key)
        self._presence = presence_of(told)
        return told

    async def __aenter__(self) -> Self:
        self.address = await self._listening.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._listening.__aexit__(kind, error, trace)

    async def drain(self, limit_s: float) -> None:
        """Take no more requests; return when those under way are answered, or their time is up."""
        self._draining = True
        if self._under_way and limit_s > 0:
            await awake.wait(self._under_way, limit_s)

    def _guarded(self, answer: _Answer) -> _Answer:
        # What answers a request of one kind, or says why not.

        async def guarded(request: web.Request) -> web.StreamResponse:
            if (refusal := self._refusal(request)) is not None:
                return refusal
            task = asyncio.current_task()
            if task is not None:
                self._under_way.add(task)
            try:
                return await answer(request)
            except web.HTTPRequestEntityTooLarge:
                return web.Response(status=413, text=f"a request has {wire.MAX_ASK_BYTES} bytes at most")
            except (ProtocolError, ChatError, ValidationError, RequestRefusedError) as error:
                return web.Response(status=400, text=str(error))
            except (EngineDeadError, GenerationError) as error:
                return web.Response(status=503 if isinstance(error, EngineDeadError) else 500, text=str(error))
            finally:
                if task is not None:
                    self._under_way.discard(task)

        return guarded

    def _refusal(self, request: web.Request) -> web.Response | None:
        if self._draining:
            return web.Response(status=503, text="this explorer is shutting down")
        if not shows_key(request, self._key):
            return web.Response(status=401, text="this is not the key of this explorer")
        if not self._bearable.bears(self.requests):
            return web.Response(status=429, text="the engine has all that it bears")
        return None

    async def _prove(self, request: web.Request) -> web.Response:
        # Who has not shown the key yet gives it to nobody who cannot say who they are.
        if self._presence is None:
            return web.Response(status=503, text="nobody was told of this explorer yet")
        try:
            return web.Response(text=self._presence.answer(request.query.get("nonce", ""), self._key))
        except ValueError as error:
            return web.Response(status=400, text=str(error))

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        ask = wire.ASKS.decode(await self._read(request))
        self._check(ask.prompt)
        sampling = Sampling.model_validate(ask.sampling)
        return await (self._streamed(request, ask, sampling) if ask.stream else self._whole(ask, sampling))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        session, prompt, sampling = await self._opened(request)
        (drawn,) = await self._engine.generate(prompt.token_ids, sampling)
        async with self._writing:
            said = await in_thread(session.add, prompt, drawn, sampling.stop or ())
        return _body(wire.SaidFrame(text=said.content))

    async def _opened(self, request: web.Request) -> tuple[Session, Prompt, Sampling]:
        # As tokens; nothing keeps what it came as.
        with await self._room.take(request, "", wire.MAX_ASK_BYTES):
            ask = wire.CHATS.decode(await _body_of(request))
            sampling = Sampling.model_validate(ask.sampling)
            check_parts(ask.messages)
            try:
                messages: list[dict[str, Any]] = _MESSAGES.decode(ask.messages)
            except UNREADABLE as error:
                raise ProtocolError(f"no conversation: {error}") from error
            # A tokenizer is not to be used by several threads at once.
            async with self._writing:
                if self._renderer is None:
                    self._renderer = renderer_for(await in_thread(self._load))
                session = Session(self._renderer)
                return session, await in_thread(session.prompt, messages), sampling

    async def _read(self, request: web.Request) -> bytes:
        with await self._room.take(request, "", wire.MAX_ASK_BYTES):
            return await _body_of(request)

    def _check(self, tokens: bytes) -> None:
        # Refused before there is an object for each token.
        if (count := len(tokens) // 4) > max(self._longest, _FEW):
            raise RequestRefusedError(f"{count} tokens, and the model takes {self._longest}")

    async def _score(self, request: web.Request) -> web.StreamResponse:
        ask = wire.SCORES.decode(await self._read(request))
        self._check(ask.tokens)
        logprobs = await self._engine.score(wire.tokens_of(ask.tokens), ask.start)
        return _body(wire.ScoredFrame(logprobs=wire.logprob_bytes(logprobs)))

    async def _whole(self, ask: wire.Ask, sampling: Sampling) -> web.Response:
        drawn = await self._engine.generate(wire.tokens_of(ask.prompt), sampling, ask.n)
        return _body(*(self._frame(index, one) for index, one in enumerate(drawn)))

    async def _streamed(self, request: web.Request, ask: wire.Ask, sampling: Sampling) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        try:
            parts = self._engine.stream(wire.tokens_of(ask.prompt), sampling, ask.n)
            async with aclosing(parts):
                async for index, more in parts:
                    if response is None:
                        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
                        await response.prepare(request)
                    await response.write(wire.FRAMES.frame(self._frame(index, more)))
        except (EngineDeadError, GenerationError) as error:
            if response is None:
                raise
            await response.write(wire.FRAMES.frame(wire.FailedFrame(reason=str(error))))
        if response is None:
            raise GenerationError("the engine drew nothing")
        return response

    def _frame(self, index: int, drawn: Completion) -> wire.DrawnFrame:
        return wire.DrawnFrame(
            index=index,
            token_ids=wire.token_bytes(drawn.token_ids),
            logprobs=wire.logprob_bytes(drawn.logprobs),
            version=self._served.version,
            finish_reason=drawn.finish_reason or None,
            versions=drawn.versions,
            routes=wire.told_routes(drawn.routes),
        )


async def _body_of(request: web.Request) -> bytes:
    try:
        async with awake.timeout(_BODY_S):
            return await read_body(request, wire.MAX_ASK_BYTES)
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason=f"the request did not come within {_BODY_S:g} s") from None


def _body(*frames: wire.Frame) -> web.Response:
    return web.Response(body=b"".join(map(wire.FRAMES.frame, frames)), content_type="application/octet-stream")
