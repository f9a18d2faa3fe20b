"""One inference server over HTTP: requests with limits, its answers as token ids and log-probabilities, its refusals.

A choice has ``token_ids`` where ``return_token_ids`` was asked for, and ``logprobs.token_logprobs``, a number for each.
An answer that lacks one of them is a ``GenerationError``: text is never made into token ids again.

=============================  ====================================================================================
what it answers                what is raised
=============================  ====================================================================================
400 to 499                     ``RequestRefusedError``, with its words
500 and more; nothing; amid    ``GenerationError``; whether it is dead finds out whoever looks after it
more than ``MAX_ANSWER_BYTES`` ``GenerationError``
compressed                     ``GenerationError``: it cannot be read, as what is no JSON
=============================  ====================================================================================
"""

import math
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

import aiohttp
import msgspec

from schemas.turn import MAX_RESPONSES
from trinity_bus import awake
from trinity_bus.chat.messages import Completion
from trinity_bus.inference.completion import ended_by
from trinity_bus.inference.concurrency import EngineLoad
from trinity_bus.inference.errors import EngineError, GenerationError, RequestRefusedError

type _Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class Logprobs(msgspec.Struct):
    """Log-probabilities of the tokens of a choice, or with ``echo`` of its prompt's too."""

    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class AnsweredChoice(msgspec.Struct):
    """A response, or what is new of it."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0
    token_ids: list[_Token] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class ServerAnswer(msgspec.Struct):
    choices: Annotated[list[AnsweredChoice], msgspec.Meta(max_length=MAX_RESPONSES)] = []  # no request asks for more


TOP: Final = 5  # Likeliest tokens that the first request asks for: as many as OpenAI's completions tell
# what reading an answer raises where it is none
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_answer(body: bytes) -> ServerAnswer:
    return read_json(body, ServerAnswer)


def completion_of(choice: AnsweredChoice, versions: list[tuple[int, int]], *, partial: bool = False) -> Completion:
    """Return a response; with ``partial`` what it has got more, of which the last event may tell the reason alone."""
    reason = ended_by(choice.finish_reason, partial=partial)
    token_ids, logprobs = ([], []) if partial and reason and not choice.token_ids else _drawn(choice)
    return Completion(token_ids, logprobs, reason, versions if reason else [])


def scores_of(answer: ServerAnswer, tokens: int, start: int) -> list[float]:
    """Return the log-probability of each of a prompt's tokens from ``start`` on, from an answer that echoes it."""
    said = answer.choices[0].logprobs if answer.choices else None
    found = [] if said is None else said.token_logprobs[start:tokens]
    scores = [logprob for logprob in found if logprob is not None]
    if len(scores) != tokens - start:
        raise GenerationError(f"the server gave {len(scores)} log-probabilities of {tokens - start} tokens of a prompt")
    return scores


def spread(answer: ServerAnswer) -> float:
    """Return by how much the log-probabilities of the likeliest first tokens differ; 0 where none are told."""
    said = answer.choices[0].logprobs if answer.choices else None
    if said is None or not said.top_logprobs or not said.top_logprobs[0]:
        return 0.0
    # The one that was drawn is told besides, and is the last unless it is among them.
    likeliest = sorted(said.top_logprobs[0].values(), reverse=True)[:TOP]
    return likeliest[0] - likeliest[-1]


def load_of(text: str, metrics: Sequence[str], version: int) -> EngineLoad | None:
    """Return the load that ``metrics``, in the order of ``EngineLoad``, tell in Prometheus' text; None: one lacks."""
    found = dict.fromkeys(metrics, -1.0)
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in found:
            found[name] = max(found[name], 0.0) + _number(line.rpartition(" ")[2])
    if not metrics or min(found.values()) < 0:
        return None
    usage, running, waiting, preempted = found.values()
    return EngineLoad(usage, int(running), int(waiting), int(preempted), version)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise GenerationError(f"a metric has the value {text[:100]!r}")
    return value


def _drawn(choice: AnsweredChoice) -> tuple[list[int], list[float]]:
    if choice.token_ids is None:
        raise GenerationError("the server gave text and no token ids, though return_token_ids was asked for")
    found: Iterable[float | None] = [] if choice.logprobs is None else choice.logprobs.token_logprobs
    logprobs = [logprob for logprob in found if logprob is not None]
    if len(logprobs) != len(choice.token_ids):
        raise GenerationError(f"the server gave {len(logprobs)} logprobs for {len(choice.token_ids)} drawn tokens")
    return list(choice.token_ids), logprobs


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
        """Return an answer: to a ``POST`` where there is a body, to a ``GET`` where there is none."""
        try:
            async with awake.timeout(limit_s), self._answer(path, body) as response:
                return await _whole(response)
        except TimeoutError as error:
            raise GenerationError(f"{self.url}{path} gave no answer within {limit_s:g} s") from error

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
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
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise GenerationError(f"the server's answer cannot be read: {error}") from error
