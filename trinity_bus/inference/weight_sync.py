"""One weight transfer into a running engine.

::

    begin --> receiving beside generation --> pause (keep) --> load --> resume --> serving
                    |                                           |
                    +--failed, late: cancel, serving the old    +--not loaded: cancel, resume, serving the old
                                                                +--half loaded, no answer: EngineDeadError

The pause is the load alone; on a CPU, that is to exchange the weights for those that were loaded beside them
(``trinity_bus.weights.vllm.loading``). ``pause`` with ``keep`` freezes the requests in flight and drops every cached
key and value, theirs too: after ``resume`` their prefixes are computed anew with the new weights, so no token is ever
drawn from a mixture of two versions, and no cached prefix outlives its version. Where caches are kept, they go on with
theirs, and the engine salts prefixes, so that no other request finds them.
"""

import asyncio
import time
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trinity_bus import awake
from trinity_bus.inference.control_client import ControlClient
from trinity_bus.inference.errors import EngineDeadError
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.transport import Source

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    checksum: str  # SHA-256 of the bytes that arrived, hex
    control_s: float  # from the call to readiness for the first byte
    transfer_s: float  # from then until the last byte was there
    pause_s: float  # how long generation stood still
    verify_s: float = 0.0  # from the last byte until its checksum was found right
    prepare_s: float = 0.0  # from then until everything was done that could be done beside generation
    nbytes: int = 0  # of the version


async def sync_weights(
    llm: "AsyncLLM", control: ControlClient, source: Source, *, keep_caches: bool = False
) -> SyncOutcome:
    """Receive a version and serve it, one at a time. Raises as the module tells."""
    began = time.perf_counter()
    session = _Session(llm, source.timeout_s, keep_caches=keep_caches)
    try:
        progress = await control.receive(source)
    except (WeightTransferError, asyncio.CancelledError):
        # The cancel takes another way than what it cancels, and must not overtake it.
        await control.drained(source.timeout_s)
        await session.cancel()
        raise
    # Generation is paused: whoever cancels waits until it goes on.
    pause_s = await to_its_end(session.load(source.version))
    return SyncOutcome(
        checksum=progress.checksum,
        control_s=max(progress.posted_at - began, 0.0),
        transfer_s=progress.received_at - progress.posted_at,
        verify_s=progress.verified_at - progress.received_at,
        prepare_s=progress.prepared_at - progress.verified_at,
        pause_s=pause_s,
        nbytes=progress.nbytes,
    )


async def to_its_end[T](work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns. Whoever is cancelled meanwhile waits until it has ended, or raises its error."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await running
        raise


class _Session:
    """The phases of one transfer, each within a limit."""

    def __init__(self, llm: "AsyncLLM", timeout_s: float, *, keep_caches: bool) -> None:
        self._llm = llm
        self._timeout_s = timeout_s
        self._keep_caches = keep_caches

    async def load(self, version: int) -> float:
        # Returns the seconds of the pause. WeightTransferError: generation goes on with the old weights.
        # EngineDeadError: there is nothing that could go on.
        core = self._llm.engine_core
        try:
            # What ``AsyncLLM.pause_generation`` does, but for its sleep of 20 ms, in which outputs may reach their
            # readers before it returns: each output carries its version in any case.
            await self._ask(core.pause_scheduler_async(mode="keep", clear_cache=not self._keep_caches))
            # Until now, steps went on; from now on, none does.
            stopped_at = time.perf_counter()
            await self._ask(self._llm.collective_rpc("trinity_transfer_load"))
        except WeightTransferError as error:
            try:
                is_torn = await self.cancel()
            except WeightTransferError as unknown:
                raise EngineDeadError(f"the engine cannot say what it has loaded: {unknown}") from unknown
            if is_torn:
                raise EngineDeadError(f"version {version} was loaded half way: {error}") from error
            await self._ask(self._llm.resume_generation())
            raise
        # In this order, without waiting between.
        await self._ask(asyncio.gather(core.set_weight_version_async(str(version)), core.resume_scheduler_async()))
        return time.perf_counter() - stopped_at

    async def cancel(self) -> bool:
        # Ends the session; true where the weights are torn.
        torn: list[bool] = await self._ask(self._llm.collective_rpc("trinity_transfer_cancel"))
        return any(torn)

    async def _ask[R](self, call: Awaitable[R]) -> R:
        # EngineDeadError: it is gone or does not answer. WeightTransferError: it refused.
        from vllm.v1.engine.exceptions import EngineDeadError as VllmEngineDeadError

        try:
            async with awake.timeout(self._timeout_s):
                return await call
        except TimeoutError as error:
            raise EngineDeadError(f"the engine gave no answer within {self._timeout_s:g} s") from error
        except VllmEngineDeadError as error:
            raise EngineDeadError("the engine's process is gone") from error
        # vLLM passes on what was raised in its processes as a bare Exception.
        except Exception as error:
            raise WeightTransferError(str(error)) from error
