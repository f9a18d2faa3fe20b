"""An inference server of somebody else as an explorer's engine: vLLM's, SGLang's, any with token ids.

::

    NEW --start: examined--> SERVING --sync_weights--> SERVING (another version)
                                |--stop--> STOPPED (the server goes on)
                                +--it is gone, was started anew, or is half way between two versions--> DEAD

    sync_weights:  the checkpoint is read and its digest compared, beside generation
                   --> requests under way end, new ones wait --> the server takes the folder's weights --> they go on
                            '--too late, cancelled--> new ones begin, with the weights as they were

No response is of two versions: servers do not tell which of its tokens was drawn by which. The checkpoint's folder is
read by this process and by the server, and held until both have. The server knows its weights by a label of this
explorer's, so one that was started anew, or that another explorer has changed, is noticed by its next look at it.

Failures: see ``trinity_bus.inference.errors``. A version that does not arrive is a ``WeightTransferError``, and the
server serves what it served before; one that it fails to load leaves nothing that could go on.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from schemas.groups.trainable import Bounds
from schemas.model_version import Member, ModelVersion
from schemas.sampling import Sampling
from trinity_bus import awake
from trinity_bus.chat.messages import Completion
from trinity_bus.config import ExplorerSettings, required
from trinity_bus.inference.completion import UNKNOWN_VERSION
from trinity_bus.inference.concurrency import EngineLoad
from trinity_bus.inference.errors import (
    EngineDeadError,
    EngineError,
    EngineStartError,
    GenerationError,
    RequestRefusedError,
)
from trinity_bus.inference.sampling import sampling_arguments
from trinity_bus.inference.server.client import (
    ServerClient,
    completion_of,
    load_of,
    read_answer,
    read_json,
    scores_of,
)
from trinity_bus.inference.server.start import Served, examine
from trinity_bus.inference.tracing import request_span
from trinity_bus.inference.weight_sync import SyncOutcome, to_its_end
from trinity_bus.telemetry import conventions as names
from trinity_bus.weights.checkpoint import CheckpointTransport, prove
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.transport import Source, source_of


class DrainGate:
    """Counts requests under way, and holds back new ones while it is shut. One shuts it at a time."""

    def __init__(self) -> None:
        self._running = 0
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Wait until it is open; it is not shut within."""
        while not self._open.is_set():
            await self._open.wait()
        self._running += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._empty.set()

    @asynccontextmanager
    async def shut(self, limit_s: float) -> AsyncIterator[None]:
        """Wait until no request is under way; none begins within. TimeoutError: some still are after ``limit_s``."""
        self._open.clear()
        try:
            async with awake.timeout(limit_s):
                await self._empty.wait()
            yield
        finally:
            self._open.set()


_HEALTH_S: Final = 1.0  # how often it is looked after
_HEALTH_LIMIT_S: Final = 30.0
_PATH: Final = "/v1/completions"
# what ``sampling_arguments`` says to an engine in this process alone
_OURS: Final = frozenset(["logprobs", "flat_logprobs", "detokenize"])
_FILTERS: Final = ("top_p", "top_k", "min_p")


class _Label(msgspec.Struct):
    weight_version: str | None = None


class _ModelConfig(msgspec.Struct):
    vocab_size: int = 0
    max_position_embeddings: int = 0
    text_config: "_ModelConfig | None" = None


class _Told(msgspec.Struct):
    success: bool = True
    message: str = ""


class ServerEngine:
    """An inference server as an explorer's engine; ``sync_timeout_s`` limits each wait within a change of weights."""

    def __init__(self, settings: ExplorerSettings, *, sync_timeout_s: float = 30.0) -> None:
        url = required(settings.engine_url, "explorer.engine_url", "to know which server to ask")
        key = "" if settings.engine_key is None else settings.engine_key.get_secret_value()
        self._settings = settings
        self._sync_timeout_s = sync_timeout_s
        self._client = ServerClient(url, key)
        self._gate = DrainGate()
        self._syncing = asyncio.Lock()
        self._served: Served | None = None
        self._bounds: Bounds | None = None
        self._version = settings.first_version
        self._label: str | None = None
        self._dead: EngineDeadError | None = None
        self._load: EngineLoad | None = None
        self.tokens_generated = 0

    @property
    def bounds(self) -> Bounds:
        """What its model can be trained on, by the configuration of ``explorer.model_path``."""
        if self._bounds is None:
            raise EngineError("the engine is not started")
        return self._bounds

    @property
    def model_version(self) -> int:
        """The version that it serves; -1 before it serves one that is known."""
        return self._version

    @property
    def load(self) -> EngineLoad | None:
        """How busy it is; None where it does not tell."""
        return self._load

    async def start(self) -> None:
        """Examine the server, and the configuration of the model that it is to serve; ConfigError, EngineStartError."""
        settings = self._settings
        path = required(settings.model_path, "mesh.model_path", "to know the server's model and its tokenizer")
        self._bounds = _bounds_of(path)
        self._client.open()
        self._served = await examine(
            self._client,
            max_model_len=settings.max_model_len,
            follows=settings.follows != "none",
            limit_s=settings.start_timeout_s,
        )

    async def stop(self) -> None:
        """Leave the server. Requests that still run fail."""
        await self._client.close()

    async def wait_dead(self) -> EngineDeadError:
        """Return as soon as the server is dead, or not the one that it was, with the reason."""
        while self._dead is None:
            await asyncio.sleep(_HEALTH_S)
            try:
                await self._look_after()
            except (GenerationError, RequestRefusedError) as error:
                self._dead = EngineDeadError(f"the inference server is gone: {error}")
        return self._dead

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling: Sampling, n: int = 1, traceparent: str | None = None
    ) -> list[Completion]:
        """Draw ``n`` responses to a prompt; see ``InferenceEngine.generate``."""
        arguments = self._arguments(sampling, n)
        with request_span(self._name, len(prompt_token_ids), arguments, traceparent) as span:
            async with self._gate.request():
                versions = self._versions()
                answer = read_answer(await self._client.ask(_PATH, self._body(prompt_token_ids, arguments)))
            if len(answer.choices) != n:
                raise GenerationError(f"asked for {n} responses, got {len(answer.choices)}")
            drawn = [
                completion_of(choice, versions) for choice in sorted(answer.choices, key=lambda choice: choice.index)
            ]
            if (longest := max(len(one.token_ids) for one in drawn)) > arguments["max_tokens"]:
                raise GenerationError(f"asked for {arguments['max_tokens']} tokens at most, got {longest}")
            tokens = sum(len(one.token_ids) for one in drawn)
            self.tokens_generated += tokens
            span.set_attribute(names.GEN_AI_USAGE_OUTPUT_TOKENS, tokens)
        return drawn

    async def stream(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        n: int = 1,
        traceparent: str | None = None,
        *,
        every: int = 1,
    ) -> AsyncGenerator[tuple[int, Completion]]:
        arguments = self._arguments(sampling, n)
        unfinished = dict.fromkeys(range(n), arguments["max_tokens"])
        drawn = 0
        with request_span(self._name, len(prompt_token_ids), arguments, traceparent) as span:
            async with self._gate.request():
                versions = self._versions()
                asked = {**self._body(prompt_token_ids, arguments), "stream": True}
                async with aclosing(self._client.events(_PATH, asked)) as events:
                    async for event in events:
                        for choice in read_answer(event).choices:
                            more = completion_of(choice, versions, partial=True)
                            left = unfinished.pop(choice.index, -1) - len(more.token_ids)
                            if left < 0:
                                raise GenerationError(f"response {choice.index} of {n} is longer than was asked for")
                            if not more.finish_reason:
                                unfinished[choice.index] = left
                                more.versions = versions if every > 1 else []
                            self.tokens_generated += len(more.token_ids)
                            drawn += len(more.token_ids)
                            yield choice.index, more
            span.set_attribute(names.GEN_AI_USAGE_OUTPUT_TOKENS, drawn)
            if unfinished:
                raise GenerationError(f"asked for {n} responses, {len(unfinished)} were not finished")

    async def score(self, token_ids: Sequence[int], start: int) -> list[float]:
        if not 1 <= start < len(token_ids):
            raise RequestRefusedError(f"there is nothing to score from {start} on in {len(token_ids)} tokens")
        arguments = {"n": 1, "max_tokens": 1, "temperature": 1.0}
        with request_span(self._name, len(token_ids), arguments, None):
            async with self._gate.request():
                asked = {**self._body(token_ids, arguments), "echo": True}
                answer = read_answer(await self._client.ask(_PATH, asked))
            return scores_of(answer, len(token_ids), start)

    async def sync_weights(self, announced: ModelVersion, member: Member) -> SyncOutcome:
        if announced.method != "checkpoint":
            raise WeightTransferError(
                f"version {announced.version} comes by {announced.method}; a server takes versions from checkpoints: "
                "set synchronizer.sync_method to checkpoint"
            )
        source = source_of(announced, member.explorer, self._sync_timeout_s)
        async with self._syncing:
            began = time.perf_counter()
            transport = CheckpointTransport()
            try:
                nbytes = await _proved(transport, source)
                proved_at = time.perf_counter()
                # Whoever cancels waits until it is told what is served.
                pause_s = await to_its_end(self._take(source))
            finally:
                transport.close()
        return SyncOutcome(
            checksum=announced.checksum,
            control_s=0.0,
            transfer_s=proved_at - began,
            pause_s=pause_s,
            nbytes=nbytes,
        )

    @property
    def _found(self) -> Served:
        if self._dead is not None:
            raise self._dead
        if self._served is None:
            raise EngineError("the engine is not started")
        return self._served

    @property
    def _name(self) -> str:
        return Path(self._settings.model_path or "").name

    def _versions(self) -> list[tuple[int, int]]:
        return [] if self._version == UNKNOWN_VERSION else [(0, self._version)]

    def _arguments(self, sampling: Sampling, n: int) -> dict[str, Any]:
        found, settings = self._found, self._settings
        arguments = sampling_arguments(sampling, n, temperature=settings.temperature, max_tokens=settings.max_tokens)
        arguments = {name: value for name, value in arguments.items() if name not in _OURS}
        if unknown := arguments.keys() - found.kind.options:
            raise RequestRefusedError(f"a server of kind {found.kind.name} knows no {', '.join(sorted(unknown))}")
        if not found.filters_told and (filtered := [name for name in _FILTERS if name in arguments]):
            raise RequestRefusedError(f"the server's log-probabilities are those before {', '.join(filtered)}")
        return arguments

    def _body(self, token_ids: Sequence[int], arguments: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": self._found.model,
            "prompt": list(token_ids),
            "logprobs": 0,
            "return_token_ids": True,
            **arguments,
        }

    async def _take(self, source: Source) -> float:
        # While nothing is drawn; returns the seconds of that.
        kind = self._found.kind
        try:
            async with self._gate.shut(self._sync_timeout_s):
                stopped_at = time.perf_counter()
                try:
                    for call in kind.reload(source.folder, source.prefix):
                        done = await self._client.ask(call.path, call.body, limit_s=self._sync_timeout_s)
                        _check(done, call.path)
                except (GenerationError, RequestRefusedError) as error:
                    self._dead = EngineDeadError(f"the server did not load version {source.version}: {error}")
                    raise self._dead from error
                self._version, self._label = source.version, source.prefix
        except TimeoutError as error:
            raise WeightTransferError(
                f"requests under way did not end within {self._sync_timeout_s:g} s: allow for more "
                "(synchronizer.sync_timeout_s), or for less tokens (explorer.max_tokens)"
            ) from error
        return time.perf_counter() - stopped_at

    async def _measure(self) -> EngineLoad | None:
        try:
            text = await self._client.ask("/metrics", limit_s=_HEALTH_LIMIT_S)
        except RequestRefusedError:
            return None
        return load_of(text.decode(errors="replace"), self._found.kind.metrics, self._version)

    async def _look_after(self) -> None:
        # Raises what shows that the server is not there any more, or not with the weights that it was given.
        await self._client.ask("/health", limit_s=_HEALTH_LIMIT_S)
        self._load = await self._measure()
        path = self._found.kind.label_path
        if self._label is None or path is None or self._syncing.locked():
            return
        async with self._syncing:
            found = read_json(await self._client.ask(path, limit_s=_HEALTH_LIMIT_S), _Label).weight_version
            if found != self._label:
                raise GenerationError(f"it has weights {found!r}, not {self._label!r}: it was started anew, or changed")


async def _proved(transport: CheckpointTransport, source: Source) -> int:
    # In a thread. Cancelled, it waits for the thread.
    cancelled = threading.Event()
    proving = asyncio.ensure_future(asyncio.to_thread(prove, transport, source, cancelled))
    try:
        manifest = await asyncio.shield(proving)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait([proving])
        raise
    return sum(bucket.nbytes for bucket in manifest.buckets())


def _check(done: bytes, path: str) -> None:
    # SGLang says within a 200 that it failed.
    told = read_json(done, _Told)
    if not told.success:
        raise GenerationError(f"{path}: {told.message}")


def _bounds_of(model_path: str) -> Bounds:
    config = Path(model_path) / "config.json"
    try:
        found = msgspec.json.decode(config.read_bytes(), type=_ModelConfig)
    except (OSError, msgspec.DecodeError) as error:
        raise EngineStartError(f"{config} cannot be read: {error}") from error
    # Where a model has several parts, the one that speaks has a section of its own.
    sizes = found.text_config or found
    return Bounds(sizes.vocab_size, sizes.max_position_embeddings)
