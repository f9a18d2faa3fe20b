"""One weight transfer into a running engine, and the front end's side of its workers' control sockets.

::

    (engine started) --open--> OPEN --begin--> receiving beside generation --> pause (keep) --> load --> resume --> OPEN
                                |                |                                              |
                                |                +--failed, late: cancel, serving the old       |
                                |                +--cancelled: what was begun goes on           |
                                |                     not loaded: cancel, resume, serving the old
                                +--close              half loaded, no answer, one is closed: EngineDeadError

The first worker receives; the others take the version from its memory when it has it whole and proven (see
``trinity_bus.weights.vllm.control``).

The pause is the load alone; on a CPU, that is to exchange the weights for those that were loaded beside them
(``trinity_bus.weights.vllm.loading``). ``pause`` with ``keep`` freezes the requests in flight and drops every cached
key and value, theirs too: after ``resume`` their prefixes are computed anew with the new weights, so no token is ever
drawn from a mixture of two versions, and no cached prefix outlives its version. Where caches are kept, they go on with
theirs, and the engine salts prefixes, so that no other request finds them.
"""

import asyncio
import contextlib
import itertools
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from trinity_bus import awake
from trinity_bus.inference.errors import EngineDeadError
from trinity_bus.runtime.frames import FrameReader, ProtocolError
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.receiver import TransferProgress
from trinity_bus.weights.transport import Source
from trinity_bus.weights.vllm.control import TO_FRONT_END, TO_WORKER, AskProgress, BeginTransfer, ToWorker, TransferTold

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_LOOK_S = 1.0  # how often a transfer that says nothing is asked
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    checksum: str  # SHA-256 of the bytes that arrived, hex
    control_s: float  # from the call to readiness for the first byte
    transfer_s: float  # from then until the last byte was there
    pause_s: float  # how long generation stood still
    verify_s: float = 0.0  # from the last byte until its checksum was found right
    prepare_s: float = 0.0  # from then until everything was done that could be done beside generation
    nbytes: int = 0  # of the version


async def to_its_end[T](work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns. Whoever is cancelled meanwhile waits until it has ended, or raises its error."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await running
        raise


class _Worker:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._frames = FrameReader(TO_FRONT_END.limit)
        self._bodies: deque[bytes] = deque()
        self.writer = writer

    def say(self, message: ToWorker) -> None:
        self.writer.write(TO_WORKER.frame(message))

    async def hear(self) -> TransferTold:
        # Cancelled, nothing is lost.
        try:
            while not self._bodies:
                if not (data := await self._reader.read(_PIECE)):
                    raise EngineDeadError("the engine's process is gone")
                self._bodies.extend(self._frames.feed(data))
            return TO_FRONT_END.decode(self._bodies.popleft())
        except ConnectionError as error:
            raise EngineDeadError("the engine's process is gone") from error
        except (OSError, ProtocolError) as error:
            raise EngineDeadError(f"the engine's process is gone, or not itself: {error}") from error


class ControlClient:
    """Connections to the control servers of all workers of an engine. One transfer at a time."""

    def __init__(self, workers: list[_Worker]) -> None:
        self._workers = workers
        self._tokens = itertools.count()

    @classmethod
    async def open(cls, llm: "AsyncLLM") -> Self:
        # Only its owner may enter it.
        folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="trinity-bus-")
        try:
            paths: list[str] = await llm.collective_rpc("trinity_open_control", args=(folder,))
            return cls([_Worker(*await asyncio.open_unix_connection(path)) for path in paths])
        finally:
            # Who is connected needs it no more.
            await asyncio.to_thread(shutil.rmtree, folder)

    async def close(self) -> None:
        for worker in self._workers:
            worker.writer.close()
        for worker in self._workers:
            # The worker may have been faster.
            with contextlib.suppress(OSError):
                await worker.writer.wait_closed()

    async def sync(self, llm: "AsyncLLM", source: Source, *, keep_caches: bool = False) -> SyncOutcome:
        """Receive a version and serve it. Raises as the module tells."""
        began = time.perf_counter()
        try:
            progress = await self.receive(source)
        except (WeightTransferError, asyncio.CancelledError):
            # The cancel takes another way than what it cancels, and must not overtake it.
            await self.drained(source.timeout_s)
            await _cancel(llm, source.timeout_s)
            raise
        # Generation is paused: whoever cancels waits until it goes on.
        pause_s = await to_its_end(_load(llm, source, keep_caches=keep_caches))
        return SyncOutcome(
            checksum=progress.checksum,
            control_s=max(progress.posted_at - began, 0.0),
            transfer_s=progress.received_at - progress.posted_at,
            verify_s=progress.verified_at - progress.received_at,
            prepare_s=progress.prepared_at - progress.verified_at,
            pause_s=pause_s,
            nbytes=progress.nbytes,
        )

    async def receive(self, source: Source) -> TransferProgress:
        """Have all workers receive a version. Return the progress of the first; it is prepared when the last is."""
        token = next(self._tokens)
        first, *others = self._workers
        first.say(BeginTransfer(token, source))
        received = await self._ended(first, token)
        for worker in others:
            worker.say(BeginTransfer(token, source, received.shared))
        prepared = [(await self._ended(worker, token)).prepared_at for worker in others]
        return replace(received, prepared_at=max([received.prepared_at, *prepared]))

    async def drained(self, limit_s: float) -> None:
        """Wait until every worker has done all that it was told: whatever is asked through vLLM takes another way."""
        token = next(self._tokens)
        try:
            async with awake.timeout(limit_s):
                for worker in self._workers:
                    worker.say(AskProgress(token))
                for worker in self._workers:
                    while (await worker.hear()).token != token:
                        """The end of a transfer that nobody waits for any more."""
        except TimeoutError as error:
            raise EngineDeadError(f"a worker of the engine gave no answer within {limit_s:g} s") from error

    async def _ended(self, worker: _Worker, token: int) -> TransferProgress:
        # All of its own waits have limits, so it comes.
        while True:
            try:
                async with awake.timeout(_LOOK_S):
                    told = await worker.hear()
            except TimeoutError:
                worker.say(AskProgress(token))
                continue
            progress = told.progress
            if told.token != token or progress.state == "receiving":
                continue
            if progress.state != "ready":
                raise WeightTransferError(progress.error or "the transfer was cancelled")
            return progress


async def _load(llm: "AsyncLLM", source: Source, *, keep_caches: bool) -> float:
    # Returns the seconds of the pause. WeightTransferError: generation goes on with the old weights.
    # EngineDeadError: there is nothing that could go on.
    core, limit_s = llm.engine_core, source.timeout_s
    try:
        # What ``AsyncLLM.pause_generation`` does, but for its sleep of 20 ms, in which outputs may reach their
        # readers before it returns: each output carries its version in any case.
        await _ask(core.pause_scheduler_async(mode="keep", clear_cache=not keep_caches), limit_s)
        # Until now, steps went on; from now on, none does.
        stopped_at = time.perf_counter()
        await _ask(llm.collective_rpc("trinity_transfer_load"), limit_s)
    except WeightTransferError as error:
        try:
            is_torn = await _cancel(llm, limit_s)
        except WeightTransferError as unknown:
            raise EngineDeadError(f"the engine cannot say what it has loaded: {unknown}") from unknown
        if is_torn:
            raise EngineDeadError(f"version {source.version} was loaded half way: {error}") from error
        await _ask(llm.resume_generation(), limit_s)
        raise
    # In this order, without waiting between.
    version = core.set_weight_version_async(str(source.version))
    await _ask(asyncio.gather(version, core.resume_scheduler_async()), limit_s)
    return time.perf_counter() - stopped_at


async def _cancel(llm: "AsyncLLM", limit_s: float) -> bool:
    # Ends the transfer; true where the weights are torn.
    torn: list[bool] = await _ask(llm.collective_rpc("trinity_transfer_cancel"), limit_s)
    return any(torn)


async def _ask[R](call: Awaitable[R], limit_s: float) -> R:
    # EngineDeadError: it is gone or does not answer. WeightTransferError: it refused.
    from vllm.v1.engine.exceptions import EngineDeadError as VllmEngineDeadError

    try:
        async with awake.timeout(limit_s):
            return await call
    except TimeoutError as error:
        raise EngineDeadError(f"the engine gave no answer within {limit_s:g} s") from error
    except VllmEngineDeadError as error:
        raise EngineDeadError("the engine's process is gone") from error
    # vLLM passes on what was raised in its processes as a bare Exception.
    except Exception as error:
        raise WeightTransferError(str(error)) from error
