"""Inference servers of somebody else as an explorer's engine: vLLM's, SGLang's, any with token ids.

::

    NEW --start: one is there--> SERVING --sync_weights--> SERVING (another version)
                                    |--stop--> STOPPED (the servers go on)
                                    +--none is there with the version: gone, started anew, or half way--> DEAD

    sync_weights:  the checkpoint is read and its digest compared, beside generation
                   --> vLLM: requests stand still --> all servers take the folder's weights --> they go on
                   --> others: requests under way end, new ones wait --> likewise
                            '--too late, cancelled--> new ones begin, with the weights as they were

A *member* is one of several servers. A request goes to that which has the least to do, or to a router that somebody
else runs in front of them; versions go to each. One that is gone, or was started anew, is asked nothing until it is
there and has taken the version, for which the checkpoint is opened again. vLLM tells which tokens were drawn by which
weights, by labels of this explorer's, so a response may be of several versions, and one by weights that no version has
is refused, or asked for again: a router may ask a member that is behind. Others do not tell; no response of theirs is
of two versions. The checkpoint's folder is read by this process and by the servers, and held until all have.

Failures: see ``trinity_bus.inference.errors``. A version that does not arrive is a ``WeightTransferError``, and the
servers serve what they served before; one that they all fail to load leaves nothing that could go on.
"""

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from schemas.event import EngineMember
from schemas.groups.trainable import Bounds
from schemas.model_version import Member, ModelVersion
from schemas.sampling import Sampling
from trinity_bus import awake
from trinity_bus.chat.messages import Completion
from trinity_bus.config import ExplorerSettings, required
from trinity_bus.inference.completion import UNKNOWN_VERSION, Gathered, Watch
from trinity_bus.inference.concurrency import EngineLoad, Steps
from trinity_bus.inference.errors import (
    EngineDeadError,
    EngineError,
    EngineStartError,
    GenerationError,
    RequestRefusedError,
)
from trinity_bus.inference.sampling import MOST_KEPT, sampling_arguments
from trinity_bus.inference.server.client import (
    Asked,
    NoAnswerError,
    ServerClient,
    StrangeWeightsError,
    completion_of,
    read_answer,
    scores_of,
)
from trinity_bus.inference.server.member import HEALTH_LIMIT_S, ServerMember, least_loaded, load_of_all
from trinity_bus.inference.server.start import Served
from trinity_bus.inference.tracing import request_span
from trinity_bus.inference.weight_sync import SyncOutcome, to_its_end
from trinity_bus.telemetry import conventions as names
from trinity_bus.weights.checkpoint import CheckpointTransport, prove
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.layout import TransferManifest
from trinity_bus.weights.transport import Source, source_of

_log = logging.getLogger(__name__)


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


_HEALTH_S: Final = 1.0  # how often servers are looked after
_AGAIN_S: Final = 0.5  # until they are asked again whether they are there
_CATCH_UP_S: Final = 30.0  # until one that is behind, and has not taken the version, is to take it again
_ROUTED_TRIES: Final = 3  # of a response that a router may have had drawn by one that is behind
_MAX_LABELS: Final = 256  # of the last versions: no response lives longer
# what ``sampling_arguments`` says to an engine in this process alone
_OURS: Final = frozenset(["logprobs", "flat_logprobs", "detokenize"])
_FILTERS: Final = ("top_p", "top_k", "min_p")


class _ModelConfig(msgspec.Struct):
    vocab_size: int = 0
    max_position_embeddings: int = 0
    text_config: "_ModelConfig | None" = None


class ServerEngine:
    """Inference servers as an explorer's engine; ``sync_timeout_s`` limits each wait within a change of weights."""

    def __init__(self, settings: ExplorerSettings, *, sync_timeout_s: float = 30.0) -> None:
        urls = required(settings.engine_url, "explorer.engine_url", "to know which servers to ask")
        key = "" if settings.engine_key is None else settings.engine_key.get_secret_value()
        self._settings = settings
        self._sync_timeout_s = sync_timeout_s
        self._members = [ServerMember(ServerClient(url, key)) for url in dict.fromkeys(urls.split(","))]
        router = settings.engine_router
        self._router = None if router is None else ServerMember(ServerClient(router, key))
        self._gate = DrainGate()
        self._syncing = asyncio.Lock()
        self._served: Served | None = None
        self._bounds: Bounds | None = None
        self.model_version = settings.first_version  # that it serves; -1 before it serves one that is known
        self._source: Source | None = None  # of the version that is served, once one was announced
        self._served_labels: tuple[str, ...] = ()  # by which servers know what may be asked of them; empty: anything
        self._versions: dict[str, int] = {}  # of labels
        self._dead: EngineDeadError | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._catch_up_at = 0.0
        self.tokens_generated = 0
        self.steps = Steps()
        self._watched_responses = 0  # that are under way

    @property
    def bounds(self) -> Bounds:
        """What its model can be trained on, by the configuration of ``explorer.model_path``."""
        if self._bounds is None:
            raise EngineError("the engine is not started")
        return self._bounds

    @property
    def tells_versions(self) -> bool:
        return not self._found.kind.keeps_requests or self._settings.follows == "none"

    @property
    def load(self) -> EngineLoad | None:
        """How busy it is; None where it does not tell."""
        return load_of_all([one.load for one in self._members if one.serves(self._served_labels)], self.model_version)

    @property
    def members(self) -> list[EngineMember]:
        """The servers, where there are several."""
        if len(self._members) == 1:
            return []
        return [
            EngineMember(
                address=one.address,
                state=("serving" if one.serves(self._served_labels) else "behind") if one.is_there else "gone",
                model_version=self._versions.get(one.label or "", UNKNOWN_VERSION),
            )
            for one in self._members
        ]

    async def start(self) -> None:
        """Examine the servers, and the configuration of their model; ConfigError, EngineStartError.

        One of them is to be there. The others are examined when they are.
        """
        path = required(self._settings.model_path, "mesh.model_path", "to know the servers' model and its tokenizer")
        self._bounds = _bounds_of(path)
        for one in self._all():
            one.client.open()
        until = awake.now() + self._settings.start_timeout_s
        while self._served is None:
            examined = [one.examine(self._settings) for one in self._members]
            for ended in await asyncio.gather(*examined, return_exceptions=True):
                if isinstance(ended, BaseException):
                    raise ended
            self._served = next((one.found for one in self._members if one.is_there), None)
            if self._served is None:
                if awake.now() >= until:
                    raise EngineStartError(f"{self._whys()}: it cannot be an engine")
                await asyncio.sleep(_AGAIN_S)
        if self._router is not None and self._settings.follows != "none" and not self._served.kind.keeps_requests:
            raise EngineStartError(
                f"servers of kind {self._served.kind.name} do not tell which weights drew a response, and "
                "explorer.engine_router may ask one that is behind: unset it, or set explorer.follows to none"
            )
        there = [one for one in self._members if one.is_there]
        for one in there:
            one.compare(self._served)
        if self._router is not None:
            self._router.label = there[0].label

    async def stop(self) -> None:
        """Leave the servers, when no request runs any more."""
        await self._stop_catching_up()
        for one in self._all():
            await one.client.close()

    async def wait_dead(self) -> EngineDeadError:
        """Return as soon as no server is there with what is served, with the reason."""
        async with asyncio.TaskGroup() as group:
            looking = [group.create_task(self._look_after(member)) for member in self._members]
            if self._router is not None:
                looking.append(group.create_task(self._look_at_router(self._router)))
            while self._dead is None:
                await asyncio.sleep(_HEALTH_S)
                self._judge()
            for look in looking:
                look.cancel()
        return self._dead

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        n: int = 1,
        traceparent: str | None = None,
        *,
        watch: Watch | None = None,
        trained: bool = False,
    ) -> list[Completion]:
        """Draw ``n`` responses to a prompt; see ``InferenceEngine.generate``."""
        if watch is not None:
            parts = self.stream(prompt_token_ids, sampling, n, traceparent, trained=trained)
            return await self._watched(parts, n, watch)
        arguments, most_kept = self._arguments(sampling, n, trained=trained)
        with request_span(self._name, len(prompt_token_ids), arguments, traceparent) as span:
            for left in reversed(range(1 if self._router is None else _ROUTED_TRIES)):
                async with self._request(prompt_token_ids, arguments, most_kept) as (client, body, asked):
                    answer = read_answer(await client.ask(self._found.kind.path, body))
                if len(answer.choices) != n:
                    raise GenerationError(f"asked for {n} responses, got {len(answer.choices)}")
                choices = sorted(answer.choices, key=lambda choice: choice.index)
                try:
                    drawn = [completion_of(one, asked) for one in choices]
                    break
                except StrangeWeightsError:
                    if not left:
                        raise
            if (longest := max(len(one.token_ids) for one in drawn)) > arguments["max_tokens"]:
                raise GenerationError(f"asked for {arguments['max_tokens']} tokens at most, got {longest}")
            tokens = sum(len(one.token_ids) for one in drawn)
            self.tokens_generated += tokens
            span.set_attribute(names.GEN_AI_USAGE_OUTPUT_TOKENS, tokens)
        return drawn

    async def _watched(self, given: AsyncGenerator[tuple[int, Completion]], n: int, watch: Watch) -> list[Completion]:
        gathered = Gathered(n)
        watch(gathered.so_far)
        self._watched_responses += n
        try:
            async with aclosing(given) as parts:
                async for index, more in parts:
                    gathered.add(index, more)
                    # None comes amid a request: servers that take one then are not watched.
                    gathered.version = self.model_version
                    # Servers do not tell their steps: as many as they draw tokens of each response.
                    self.steps.add(len(more.token_ids) / self._watched_responses)
        finally:
            self._watched_responses -= n
        return gathered.whole

    async def stream(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        n: int = 1,
        traceparent: str | None = None,
        *,
        trained: bool = False,
    ) -> AsyncGenerator[tuple[int, Completion]]:
        arguments, most_kept = self._arguments(sampling, n, trained=trained)
        most: int = arguments["max_tokens"]
        told = dict.fromkeys(range(n), 0)
        drawn = 0
        with request_span(self._name, len(prompt_token_ids), arguments, traceparent) as span:
            async with (
                self._request(prompt_token_ids, arguments, most_kept) as (client, body, asked),
                aclosing(client.events(self._found.kind.path, {**body, "stream": True})) as events,
            ):
                async for event in events:
                    for choice in read_answer(event).choices:
                        before = told.pop(choice.index, most + 1)
                        more = completion_of(choice, asked, before, partial=True)
                        if before + len(more.token_ids) > most:
                            raise GenerationError(f"response {choice.index} of {n} is longer than was asked for")
                        if not more.finish_reason:
                            told[choice.index] = before + len(more.token_ids)
                            more.versions = []
                        self.tokens_generated += len(more.token_ids)
                        drawn += len(more.token_ids)
                        yield choice.index, more
            span.set_attribute(names.GEN_AI_USAGE_OUTPUT_TOKENS, drawn)
            if told:
                raise GenerationError(f"asked for {n} responses, {len(told)} were not finished")

    async def score(self, token_ids: Sequence[int], start: int) -> list[float]:
        if not 1 <= start < len(token_ids):
            raise RequestRefusedError(f"there is nothing to score from {start} on in {len(token_ids)} tokens")
        arguments = {"n": 1, "max_tokens": 1, "temperature": 1.0}
        with request_span(self._name, len(token_ids), arguments, None):
            async with self._request(token_ids, arguments) as (client, _, _):
                found = self._found
                answer = read_answer(await client.ask(found.kind.path, found.kind.scoring(found.model, token_ids)))
            return scores_of(answer, token_ids, start)

    async def sync_weights(self, announced: ModelVersion, member: Member) -> SyncOutcome:
        if announced.method != "checkpoint":
            raise WeightTransferError(
                f"version {announced.version} comes by {announced.method}; a server takes versions from checkpoints: "
                "set synchronizer.sync_method to checkpoint"
            )
        source = source_of(announced, member.explorer, self._sync_timeout_s)
        # All that are there take this one.
        await self._stop_catching_up()
        async with self._syncing:
            began = time.perf_counter()
            transport = CheckpointTransport()
            try:
                manifest = await _read(prove, transport, source)
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
            nbytes=sum(bucket.nbytes for bucket in manifest.buckets()),
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

    def _all(self) -> list[ServerMember]:
        return self._members + ([] if self._router is None else [self._router])

    def _whys(self) -> str:
        return "; ".join(f"{one.client.url}: {one.why}" for one in self._members)

    def _arguments(self, sampling: Sampling, n: int, *, trained: bool) -> tuple[dict[str, Any], int]:
        # Besides, how many tokens one may be drawn from for them to be told
        found, settings = self._found, self._settings
        given = sampling_arguments(
            sampling,
            n,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            most_kept=MOST_KEPT if trained else 0,
        )
        arguments = {name: value for name, value in given.items() if name not in _OURS}
        if unknown := arguments.keys() - found.kind.options:
            raise RequestRefusedError(f"a server of kind {found.kind.name} knows no {', '.join(sorted(unknown))}")
        if not found.filters_told and (filtered := [name for name in _FILTERS if name in arguments]):
            raise RequestRefusedError(f"the server's log-probabilities are those before {', '.join(filtered)}")
        return arguments, given["logprobs"]

    @asynccontextmanager
    async def _request(
        self, token_ids: Sequence[int], arguments: dict[str, Any], most_kept: int = 0
    ) -> AsyncIterator[tuple[ServerClient, dict[str, Any], Asked]]:
        # Provides whom to ask, and what, and what the answer is to be.
        found = self._found
        async with self._gate.request():
            member = self._router or least_loaded(self._members, self._served_labels)
            body = found.kind.body(found.model, token_ids, arguments)
            if found.kind.keeps_requests and self._settings.caches == "kept":
                # Prefixes are found by those alone who ask with the same salt, in which vLLM takes no slash.
                body["cache_salt"] = hashlib.sha256((member.label or "").encode()).hexdigest()
            asked = Asked(
                len(token_ids),
                [] if self.model_version == UNKNOWN_VERSION else [(0, self.model_version)],
                # Of versions that are yet to come, too
                None if self.tells_versions else self._versions,
                most_kept,
                self._settings.capture_routes,
            )
            member.responses += arguments["n"]
            try:
                yield member.client, body, asked
            except NoAnswerError:
                member.is_doubted = True
                raise
            finally:
                member.responses -= arguments["n"]

    async def _take(self, source: Source) -> float:
        # Returns for how many seconds nothing was drawn.
        examined = [one for one in self._members if one.found is not None]
        # Nobody waits for one that is gone; it takes the version when it is back.
        members = [one for one in examined if one.is_there] or examined
        async with AsyncExitStack() as stack:
            if not self._found.kind.keeps_requests:
                try:
                    await stack.enter_async_context(self._gate.shut(self._sync_timeout_s))
                except TimeoutError as error:
                    raise WeightTransferError(
                        f"requests under way did not end within {self._sync_timeout_s:g} s: allow for more "
                        "(synchronizer.sync_timeout_s), or for less tokens (explorer.max_tokens)"
                    ) from error
            before = self._served_labels
            # What they draw is of this version, and asked of them, before the last one has it.
            self._versions[source.prefix] = source.version
            for forgotten in list(self._versions)[:-_MAX_LABELS]:
                del self._versions[forgotten]
            self._served_labels = (*before, source.prefix) if before else ()
            pauses = await self._load(members, source, keep_caches=self._settings.caches == "kept")
            self._served_labels = (source.prefix,)
            if not pauses:
                self._dead = EngineDeadError(f"no server has loaded version {source.version}: {self._whys()}")
                raise self._dead
            self.model_version, self._source = source.version, source
            if self._router is not None:
                self._router.label = source.prefix
        return max(pauses)

    async def _load(self, members: Sequence[ServerMember], source: Source, *, keep_caches: bool) -> list[float]:
        # Returns how long each that has loaded it has taken.
        taking = [one.take(source, self._sync_timeout_s, keep_caches=keep_caches) for one in members]
        pauses = []
        for member, ended in zip(members, await asyncio.gather(*taking, return_exceptions=True), strict=True):
            if isinstance(ended, GenerationError | RequestRefusedError):
                _log.warning("%s has not loaded version %d: %s", member.address, source.version, ended)
            elif isinstance(ended, BaseException):
                raise ended
            else:
                pauses.append(ended)
        return pauses

    async def _look_after(self, member: ServerMember) -> None:
        while True:
            await asyncio.sleep(_HEALTH_S)
            was_there = member.is_there
            if member.found is not None:
                await member.look(self.model_version)
            else:
                await self._look_for(member)
            if member.is_there != was_there:
                _log.warning("%s is %s", member.address, "there" if member.is_there else f"gone: {member.why}")

    async def _look_at_router(self, router: ServerMember) -> None:
        # Without it nothing can be asked, whatever it answers of itself.
        while True:
            try:
                await router.client.ask("/health", limit_s=HEALTH_LIMIT_S)
            except NoAnswerError as error:
                self._dead = EngineDeadError(f"the router of the inference servers is gone: {error}")
            except (GenerationError, RequestRefusedError):
                """It is there."""
            await asyncio.sleep(_HEALTH_S)

    async def _look_for(self, member: ServerMember) -> None:
        try:
            await member.examine(self._settings)
            assert self._served is not None  # noqa: S101 - it has started
            member.compare(self._served)
        except EngineStartError as error:
            if str(error) != member.why:
                _log.warning("%s is asked nothing: %s", member.address, error)
            member.found, member.is_there, member.why = None, False, str(error)

    def _judge(self) -> None:
        # Whether this can go on; begins to give the version to those that are behind.
        if self._catching_up is not None and self._catching_up.done():
            ended, self._catching_up = self._catching_up, None
            ended.result()
        if self._dead is None and not any(one.serves(self._served_labels) for one in self._members):
            self._dead = EngineDeadError(f"the inference server is gone: {self._whys()}")
        behind = [one for one in self._members if one.is_there and not one.serves(self._served_labels)]
        is_idle = self._dead is None and self._catching_up is None and not self._syncing.locked()
        if behind and is_idle and self._source is not None and awake.now() >= self._catch_up_at:
            self._catch_up_at = awake.now() + _CATCH_UP_S
            self._catching_up = asyncio.create_task(self._catch_up(behind, self._source), name="catch up")

    async def _catch_up(self, behind: Sequence[ServerMember], source: Source) -> None:
        async with self._syncing:
            transport = CheckpointTransport()
            try:
                # It was read and proven when it came.
                await _read(CheckpointTransport.open, transport, source)
                # Other weights may have answered requests with this version's salt.
                loaded = await to_its_end(self._load(behind, source, keep_caches=False))
            except WeightTransferError as error:
                _log.warning("servers that are behind wait for the next version: %s", error)
                return
            finally:
                transport.close()
        if len(loaded) == len(behind):
            self._catch_up_at = 0.0

    async def _stop_catching_up(self) -> None:
        ended, self._catching_up = self._catching_up, None
        if ended is not None:
            ended.cancel()
            await asyncio.wait([ended])
            if not ended.cancelled():
                ended.result()


async def _read(
    read: Callable[[CheckpointTransport, Source, threading.Event], TransferManifest],
    transport: CheckpointTransport,
    source: Source,
) -> TransferManifest:
    # In a thread. Cancelled, it waits for the thread.
    cancelled = threading.Event()
    reading = asyncio.ensure_future(asyncio.to_thread(read, transport, source, cancelled))
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait([reading])
        raise


def _bounds_of(model_path: str) -> Bounds:
    config = Path(model_path) / "config.json"
    try:
        found = msgspec.json.decode(config.read_bytes(), type=_ModelConfig)
    except (OSError, msgspec.DecodeError) as error:
        raise EngineStartError(f"{config} cannot be read: {error}") from error
    # Where a model has several parts, the one that speaks has a section of its own.
    sizes = found.text_config or found
    return Bounds(sizes.vocab_size, sizes.max_position_embeddings)
