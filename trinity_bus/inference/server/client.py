"""One inference server over HTTP: requests with limits, its answers as token ids and log-probabilities, its refusals.

A choice has ``token_ids``, and in ``logprobs`` a number for each. An answer that lacks one of them is a
``GenerationError``: text is never made into token ids again. vLLM tells besides which weights drew which tokens, by the
label that they have there, and, where it was started so, from which tokens each was drawn and by which experts.

=============================  ====================================================================================
what it answers                what is raised
=============================  ====================================================================================
400 to 499                     ``RequestRefusedError``, with its words
500 and more                   ``GenerationError``; whether it is dead finds out whoever looks after it
nothing, or half of it         ``NoAnswerError``, likewise; after ``_SILENCE_S`` if its machine is gone without a word
more than ``MAX_ANSWER_BYTES`` ``GenerationError``
compressed                     ``GenerationError``: it cannot be read, as what is no JSON
other tokens, sets or labels   ``GenerationError``
=============================  ====================================================================================
"""

import base64
import math
import re
import socket
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

import aiohttp
import msgspec
import numpy as np

from schemas.experience import UInt8
from schemas.turn import MAX_RESPONSES
from trinity_bus import awake
from trinity_bus.chat.messages import Completion
from trinity_bus.inference.completion import UNKNOWN_VERSION, ended_by, routes_of, told_kept
from trinity_bus.inference.concurrency import EngineLoad
from trinity_bus.inference.errors import EngineError, GenerationError, RequestRefusedError
from trinity_bus.weights.channel import end_on_silence

type _Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class NoAnswerError(GenerationError):
    """The server cannot be reached, or broke off."""


class StrangeWeightsError(GenerationError):
    """Weights have drawn that are of no version: a router has asked a server that is behind."""


class TokenLogprob(msgspec.Struct):
    logprob: float
    token_id: _Token = 0


class DrawnToken(TokenLogprob):
    top_logprobs: list[TokenLogprob] = []


class Logprobs(msgspec.Struct):
    """Log-probabilities of the tokens of a choice: ``content`` of vLLM's; with ``echo`` those of its prompt's too."""

    content: list[DrawnToken] | None = None
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class VersionSpan(msgspec.Struct):
    """From ``start`` on tokens were drawn by the weights with this label."""

    version: str
    start: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class AnsweredChoice(msgspec.Struct):
    """A response, or what is new of it; versions and routes are those of the whole, with its end."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0
    token_ids: list[_Token] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    weight_versions: list[VersionSpan] | None = None
    sampling_mask: list[list[_Token]] | None = None
    routed_experts: str | None = None  # a file of numpy's in base64


class ServerAnswer(msgspec.Struct):
    choices: Annotated[list[AnsweredChoice], msgspec.Meta(max_length=MAX_RESPONSES)] = []  # no request asks for more
    prompt_logprobs: list[dict[str, TokenLogprob] | None] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request is to be answered with."""

    prompt_tokens: int
    versions: list[tuple[int, int]]  # of every response, where the server does not tell them
    labels: Mapping[str, int] | None = None  # the version of each label, where it does
    most_kept: int = 0  # sets of less tokens are wanted; 0: none are
    routes: bool = False


TOP: Final = 5  # Likeliest tokens that the first request asks for: as many as OpenAI's completions tell
# what reading an answer raises where it is none
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NO_LOGPROB: Final = -9999.0  # vLLM's, for one that is none
# the header that numpy writes before small integers; nothing else is read, and nothing evaluated
_NPY: Final = re.compile(
    rb"\x93NUMPY\x01\x00..{'descr': '([|<](?:u1|u2|i4))', 'fortran_order': False, "
    rb"'shape': \((\d{1,9}), (\d{1,9}), (\d{1,9})\), } *\n",
    re.DOTALL,
)


def read_answer(body: bytes) -> ServerAnswer:
    return read_json(body, ServerAnswer)


def completion_of(choice: AnsweredChoice, asked: Asked, before: int = 0, *, partial: bool = False) -> Completion:
    """Return a response; with ``partial`` what it has got more than the ``before`` tokens that were told.

    The last event of a stream may tell the reason alone.
    """
    reason = ended_by(choice.finish_reason, partial=partial)
    token_ids, logprobs = ([], []) if partial and reason and not choice.token_ids else _drawn(choice)
    tokens = before + len(token_ids)
    versions = _versions(choice, asked, tokens) if reason else []
    routes = _routes(choice.routed_experts, asked.prompt_tokens + tokens - 1) if reason and asked.routes else None
    return Completion(token_ids, logprobs, reason, versions, routes, _kept(choice, token_ids, asked.most_kept))


def scores_of(answer: ServerAnswer, token_ids: Sequence[int], start: int) -> list[float]:
    """Return the log-probability of each of a prompt's tokens from ``start`` on, from an answer that has them."""
    if answer.prompt_logprobs is not None:
        told = zip(map(str, token_ids), answer.prompt_logprobs, strict=False)
        found = [one[token].logprob if one is not None and token in one else None for token, one in told]
    else:
        said = answer.choices[0].logprobs if answer.choices else None
        found = [] if said is None else said.token_logprobs[: len(token_ids)]
    scores = [logprob for logprob in found[start:] if logprob is not None]
    if len(scores) != len(token_ids) - start:
        raise GenerationError(
            f"the server gave {len(scores)} log-probabilities of {len(token_ids) - start} tokens of a prompt"
        )
    return scores


def spread(answer: ServerAnswer) -> float:
    """Return by how much the log-probabilities of the likeliest first tokens differ; 0 where none are told."""
    said = answer.choices[0].logprobs if answer.choices else None
    top: list[float] = []
    if said is not None and said.content:
        top = [one.logprob for one in said.content[0].top_logprobs]
    elif said is not None and said.top_logprobs and said.top_logprobs[0]:
        top = list(said.top_logprobs[0].values())
    # The one that was drawn is told besides, and is the last unless it is among them.
    likeliest = sorted(top, reverse=True)[:TOP]
    return likeliest[0] - likeliest[-1] if likeliest else 0.0


def load_of(text: str, metrics: Sequence[str], version: int) -> EngineLoad | None:
    """Return the load that ``metrics``, in the order of ``EngineLoad``, tell in Prometheus' text; None: one lacks.

    A server may have several engines: the fullest cache counts, and the requests of all.
    """
    found: dict[str, list[float]] = {name: [] for name in metrics}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in found:
            found[name].append(_number(line.rpartition(" ")[2]))
    if not metrics or not all(found.values()):
        return None
    usages, *counts = found.values()
    running, waiting, preempted = (int(sum(values)) for values in counts)
    return EngineLoad(max(usages), running, waiting, preempted, version)


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
        raise GenerationError("the server gave no token ids, though they were asked for")
    said = choice.logprobs or Logprobs()
    found: Iterable[float | None] = said.token_logprobs
    if said.content is not None:
        if [one.token_id for one in said.content] != choice.token_ids:
            raise GenerationError("the server gave log-probabilities of other tokens than it drew")
        found = [one.logprob for one in said.content]
    logprobs = [logprob for logprob in found if logprob is not None and logprob > _NO_LOGPROB]
    if len(logprobs) != len(choice.token_ids):
        raise GenerationError(f"the server gave {len(logprobs)} logprobs for {len(choice.token_ids)} drawn tokens")
    return list(choice.token_ids), logprobs


def _versions(choice: AnsweredChoice, asked: Asked, tokens: int) -> list[tuple[int, int]]:
    if asked.labels is None:
        return asked.versions
    spans = choice.weight_versions or []
    starts = [span.start for span in spans]
    if tokens and (starts[:1] != [0] or starts[-1] >= tokens or starts != sorted(set(starts))):
        raise GenerationError(f"the server tells which weights drew from {starts} on, of {tokens} tokens")
    drawn = [(span.start, asked.labels.get(span.version, UNKNOWN_VERSION), span.version) for span in spans]
    # Before any version was served, weights have none.
    if asked.versions and (strange := [label for _, version, label in drawn if version == UNKNOWN_VERSION]):
        raise StrangeWeightsError(f"weights {strange[0][:100]!r} drew, which this explorer has not loaded")
    return [(start, version) for start, version, _ in drawn if version != UNKNOWN_VERSION]


def _kept(choice: AnsweredChoice, token_ids: Sequence[int], most: int) -> bytearray | None:
    sets = choice.sampling_mask
    if not most or not sets or not token_ids:
        return None
    if len(sets) != len(token_ids) or any(token not in kept for token, kept in zip(token_ids, sets, strict=True)):
        raise GenerationError(f"the server gave {len(sets)} sets of tokens that {len(token_ids)} were drawn from")
    try:
        return told_kept([np.array(sorted(one), np.int64) for one in sets], most - 1)
    except ValueError as error:
        raise GenerationError(f"the server's answer cannot be read: {error}") from error


def _routes(told: str | None, tokens: int) -> UInt8:
    if told is None:
        return routes_of(None, tokens)
    try:
        file = base64.b64decode(told, validate=True)
        routes = None
        if header := _NPY.match(file):
            kind, *shape = header.groups()
            routes = np.frombuffer(file, kind.decode(), offset=header.end()).reshape([int(size) for size in shape])
    except ValueError as error:
        raise GenerationError(f"the server's answer cannot be read: {error}") from error
    return routes_of(routes, tokens)


MAX_ANSWER_BYTES: Final = 64 << 20
_BUFFER_BYTES: Final = 1 << 20
_CONNECT_S: Final = 5.0
_SILENCE_S: Final = 24  # until a machine that is gone without a word has broken off
_DATA: Final = b"data: "


class ServerClient:
    """Asks one server at ``http://host:port``, without ``/v1``. It is opened within a running loop."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url.rstrip("/")
        self.url = re.sub("://.*@", "://***@", self._url)  # as people are told of it
        # What is small as it comes, and large when it is unpacked, is not asked for, and not unpacked.
        self._headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._http: aiohttp.ClientSession | None = None

    def open(self) -> None:
        self._http = aiohttp.ClientSession(
            # vLLM's server closes what is idle for 5 s; a POST on such a connection is lost.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0, socket_factory=_socket),
            headers=self._headers,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            read_bufsize=_BUFFER_BYTES,
        )

    async def close(self) -> None:
        """Let go of its connections. A request whose answer has begun may never end: who asks ends it before."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def ask(self, path: str, body: Mapping[str, Any] | None = None, *, limit_s: float | None = None) -> bytes:
        """Return an answer: to a ``POST`` where there is a body, to a ``GET`` where there is none."""
        try:
            # A server that has failed at something closes the connection, on which the next request would be lost.
            alone = None if limit_s is None else {"Connection": "close"}
            async with awake.timeout(limit_s), self._answer(path, body, alone) as response:
                return await _whole(response)
        except TimeoutError as error:
            raise NoAnswerError(f"{self.url}{path} gave no answer within {limit_s:g} s") from error

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        async with self._answer(path, body) as response:
            line = bytearray()
            async for part in response.content.iter_any():
                first, *more = part.split(b"\n")
                line += first
                if len(line) > MAX_ANSWER_BYTES:
                    raise GenerationError(f"an event of more than {MAX_ANSWER_BYTES} bytes")
                for following in more:
                    if line.startswith(_DATA) and (data := line[len(_DATA) :].strip()) != b"[DONE]":
                        yield bytes(data)
                    line = bytearray(following)

    @asynccontextmanager
    async def _answer(
        self, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        if self._http is None:
            raise EngineError("the server is not connected to, or no more")
        method = "GET" if body is None else "POST"
        try:
            url = f"{self._url}{path}"
            async with self._http.request(method, url, json=body, headers=headers, allow_redirects=False) as response:
                if response.status != 200:
                    why = f"{path}: {response.status}: {(await response.content.read(2000)).decode(errors='replace')}"
                    raise RequestRefusedError(why) if 400 <= response.status < 500 else GenerationError(why)
                yield response
        except aiohttp.ClientError as error:
            raise NoAnswerError(f"{self.url} does not answer: {error or type(error).__name__}") from error


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    connection = socket.socket(*address[:3])
    end_on_silence(connection, _SILENCE_S)
    return connection


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
