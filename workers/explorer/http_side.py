"""The explorer's HTTP side: what gateways, and explorers of other pools, ask of its engine, past the log.

::

    who asks --POST, key--> OPEN --Ask-------> engine.generate or .stream --> frames (``trinity_bus.chat.wire``)
                              |  '-ChatAsk---> written by this model's tokenizer --> engine.generate --> text
                              |  '-ScoreAsk--> engine.score --> log-probabilities
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
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final, Self

import msgspec
from aiohttp import web
from pydantic import ValidationError

from schemas import ExplorerHeartbeat
from schemas.errors import encodable
from schemas.sampling import Sampling
from schemas.topic import TRACEPARENT
from trinity_bus import awake
from trinity_bus.chat import ChatError, Completion, Prompt, Renderer, Session, Tokenizer, renderer_for, wire
from trinity_bus.chat.openai import check_parts
from trinity_bus.config import ExplorerSettings, required
from trinity_bus.gateway.fleet import Presence, presence_of, with_proof
from trinity_bus.inference.concurrency import ConcurrencyController
from trinity_bus.inference.errors import EngineDeadError, GenerationError, RequestRefusedError
from trinity_bus.inference.sampling import check_count
from trinity_bus.runners.engine import ExplorerEngine
from trinity_bus.runtime.frames import UNREADABLE, ProtocolError
from trinity_bus.runtime.http import Room, in_thread, listening, read_body, shows_key
from workers.explorer.weights import ServedVersion

_CLOSE_S: Final = 0.1  # how long requests may still take when it is closed; 0 would be without end

_BODY_S: Final = 60.0  # In which the body of a request must come: a peer that has vanished amid one would keep its room
_FEW: Final = 1 << 16  # tokens that are left to the engine to refuse
_MESSAGES: Final = msgspec.json.Decoder(list[dict[str, Any]])


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
        app.router.add_post(wire.PATH, self._answer)
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

    async def __aexit__(self, *_: object) -> None:
        await self._listening.__aexit__(None, None, None)

    async def drain(self, limit_s: float) -> None:
        """Take no more requests; return when those under way are answered, or their time is up."""
        self._draining = True
        if self._under_way and limit_s > 0:
            await awake.wait(self._under_way, limit_s)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        # Or why not.
        if (refusal := self._refusal(request)) is not None:
            return refusal
        task = asyncio.current_task()
        if task is not None:
            self._under_way.add(task)
        try:
            return await self._answer_ask(request)
        except web.HTTPRequestEntityTooLarge:
            return web.Response(status=413, text=f"a request has {wire.MAX_ASK_BYTES} bytes at most")
        except (ProtocolError, ChatError, ValidationError, RequestRefusedError) as error:
            return web.Response(status=400, text=encodable(str(error)))
        except (EngineDeadError, GenerationError) as error:
            return web.Response(status=503 if isinstance(error, EngineDeadError) else 500, text=encodable(str(error)))
        finally:
            if task is not None:
                self._under_way.discard(task)

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

    async def _answer_ask(self, request: web.Request) -> web.StreamResponse:
        match await self._read(request):
            case wire.ScoreAsk(tokens, start):
                self._check(tokens)
                if start < 1:
                    raise RequestRefusedError(f"tokens have probabilities from 1 on, not from {start}")
                logprobs = await self._engine.score(wire.tokens_of(tokens), start)
                return _body(wire.ScoredFrame(wire.logprob_bytes(logprobs)))
            case wire.Ask(prompt, how, n) as ask:
                self._check(prompt)
                check_count(n)
                sampling = Sampling.model_validate_json(how)
                if ask.stream:
                    return await self._streamed(request, ask, sampling)
                drawn = await self._engine.generate(
                    wire.tokens_of(prompt), sampling, n, _parent(request), trained=ask.trained
                )
                return _body(*(self._frame(index, one) for index, one in enumerate(drawn)))
            case (session, written, sampling):
                (one,) = await self._engine.generate(written.token_ids, sampling, 1, _parent(request))
                async with self._writing:
                    said = await in_thread(session.add, written, one, sampling.stop or ())
                return _body(wire.SaidFrame(said.content))

    async def _read(self, request: web.Request) -> wire.Ask | wire.ScoreAsk | tuple[Session, Prompt, Sampling]:
        # A conversation as tokens; nothing keeps what it came as.
        with await self._room.take(request, "", wire.MAX_ASK_BYTES):
            ask = wire.ASKS.decode(await _body_of(request))
            if not isinstance(ask, wire.ChatAsk):
                return ask
            sampling = Sampling.model_validate_json(ask.sampling)
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

    def _check(self, tokens: bytes) -> None:
        # Refused before there is an object for each token.
        if (count := len(tokens) // 4) > max(self._longest, _FEW):
            raise RequestRefusedError(f"{count} tokens, and the model takes {self._longest}")

    async def _streamed(self, request: web.Request, ask: wire.Ask, sampling: Sampling) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        try:
            tokens, parent = wire.tokens_of(ask.prompt), _parent(request)
            parts = self._engine.stream(tokens, sampling, ask.n, parent, trained=ask.trained)
            async with aclosing(parts):
                async for index, more in parts:
                    if response is None:
                        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
                        await response.prepare(request)
                    await response.write(wire.FRAMES.frame(self._frame(index, more)))
        except (EngineDeadError, GenerationError) as error:
            if response is None:
                raise
            await response.write(wire.FRAMES.frame(wire.failed(error)))
        if response is None:
            raise GenerationError("the engine drew nothing")
        return response

    def _frame(self, index: int, drawn: Completion) -> wire.DrawnFrame:
        return wire.frame_of(drawn, index, self._served.version, wire.MAX_ROUTES_BYTES)


def _parent(request: web.Request) -> str | None:
    return request.headers.get(TRACEPARENT)


async def _body_of(request: web.Request) -> bytes:
    try:
        async with awake.timeout(_BODY_S):
            return await read_body(request, wire.MAX_ASK_BYTES)
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason=f"the request did not come within {_BODY_S:g} s") from None


def _body(*frames: wire.Frame) -> web.Response:
    return web.Response(body=b"".join(map(wire.FRAMES.frame, frames)), content_type="application/octet-stream")
