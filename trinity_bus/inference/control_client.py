"""The front end's side of its workers' control sockets; see ``trinity_bus.weights.vllm.control``.

::

    (engine started) --open--> OPEN --begin--> waiting --every worker ready: progress--> OPEN
                                |                |--one failed: WeightTransferError----> OPEN
                                |                |--cancelled: what was begun goes on--> OPEN
                                +--close         +--one is closed: EngineDeadError

The first worker receives; the others take the version from its memory when it has it whole and proven.
"""

import asyncio
import contextlib
import itertools
import shutil
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from trinity_bus import awake
from trinity_bus.inference.errors import EngineDeadError
from trinity_bus.runtime.frames import FrameStream, ProtocolError
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.receiver import TransferProgress
from trinity_bus.weights.transport import Source
from trinity_bus.weights.vllm.control import (
    TO_FRONT_END,
    TO_WORKER,
    AskProgress,
    BeginTransfer,
    ToWorker,
    TransferTold,
)

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_LOOK_S = 1.0  # how often a transfer that says nothing is asked


class _Worker:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._frames = FrameStream(reader, TO_FRONT_END.limit)
        self.writer = writer

    def say(self, message: ToWorker) -> None:
        self.writer.write(TO_WORKER.frame(message))

    async def hear(self) -> TransferTold:
        try:
            body = await self._frames.next()
            if body is not None:
                return TO_FRONT_END.decode(body)
        except (OSError, ProtocolError) as error:
            raise EngineDeadError(f"the engine's process is gone, or not itself: {error}") from error
        raise EngineDeadError("the engine's process is gone")


class ControlClient:
    """Connections to the control servers of all workers. One transfer at a time."""

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

    async def close(self) -> None:
        for worker in self._workers:
            worker.writer.close()
        for worker in self._workers:
            # The worker may have been faster.
            with contextlib.suppress(OSError):
                await worker.writer.wait_closed()

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
