"""The front end's side of its workers' control sockets; see ``trinity_bus.weights.vllm.control_server``.

::

    (engine started) --open--> OPEN --begin--> waiting --every worker ready: progress--> OPEN
                                |                |--one failed: WeightTransferError----> OPEN
                                |                |--cancelled: what was begun goes on--> OPEN
                                +--close         +--one is closed: EngineDeadError
"""

import asyncio
import itertools
import json
import shutil
import tempfile
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

from trinity_bus.inference.errors import EngineDeadError
from trinity_bus.weights.errors import WeightTransferError

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_LOOK_S = 1.0
"""How often a transfer that says nothing is asked."""
_MAX_LINE = 1 << 16


class ControlClient:
    """Connections to the control servers of all workers. One transfer at a time."""

    def __init__(self, connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
        self._connections = connections
        self._tokens = itertools.count()

    @classmethod
    async def open(cls, llm: "AsyncLLM") -> Self:
        """Have the workers open their control sockets, and connect."""
        # Only its owner may enter it.
        folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="trinity-bus-")
        try:
            paths: list[str] = await llm.collective_rpc("trinity_open_control", args=(folder,))
            return cls([await asyncio.open_unix_connection(path, limit=_MAX_LINE) for path in paths])
        finally:
            # Who is connected needs it no more.
            await asyncio.to_thread(shutil.rmtree, folder)

    async def receive(self, source: dict[str, Any]) -> dict[str, Any]:
        """Have every worker receive a version.

        Args:
            source: Fields of ``trinity_bus.weights.transport.Source``.

        Returns:
            Fields of ``trinity_bus.weights.receiver.TransferProgress``, of the last to be ready.

        Raises:
            WeightTransferError: One did not get it.
            EngineDeadError: A worker is gone.
        """
        token = next(self._tokens)
        for _, writer in self._connections:
            _write(writer, {"op": "begin", "token": token, "source": source})
        workers = [await self._ended(reader, writer, token) for reader, writer in self._connections]
        return max(workers, key=lambda worker: worker["prepared_at"])

    async def drained(self, limit_s: float) -> None:
        """Wait until every worker has done all that it was told: whatever is asked through vLLM takes another way.

        Args:
            limit_s: How long to wait.

        Raises:
            EngineDeadError: A worker is gone, or does not answer.
        """
        token = next(self._tokens)
        try:
            async with asyncio.timeout(limit_s):
                for _, writer in self._connections:
                    _write(writer, {"op": "progress", "token": token})
                for reader, _ in self._connections:
                    while (await _line(reader))["token"] != token:
                        """The end of a transfer that nobody waits for any more."""
        except TimeoutError as error:
            raise EngineDeadError(f"a worker of the engine gave no answer within {limit_s:g} s") from error

    async def close(self) -> None:
        """Leave."""
        async with AsyncExitStack() as stack:
            for _, writer in self._connections:
                writer.close()
                stack.push_async_callback(_gone, writer)

    async def _ended(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: int) -> dict[str, Any]:
        """Wait for the end of a worker's transfer; all of its own waits have limits, so it comes."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    progress = await _line(reader)
            except TimeoutError:
                _write(writer, {"op": "progress", "token": token})
                continue
            if progress["token"] != token or progress["state"] == "receiving":
                continue
            if progress["state"] != "ready":
                raise WeightTransferError(progress["error"] or "the transfer was cancelled")
            return progress


def _write(writer: asyncio.StreamWriter, command: dict[str, Any]) -> None:
    writer.write(json.dumps(command).encode() + b"\n")


async def _line(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return what a worker says next.

    Raises:
        EngineDeadError: It is gone.
    """
    try:
        line = await reader.readline()
    except OSError as error:
        raise EngineDeadError("the engine's process is gone") from error
    if not line:
        raise EngineDeadError("the engine's process is gone")
    said: dict[str, Any] = json.loads(line)
    return said


async def _gone(writer: asyncio.StreamWriter) -> None:
    try:
        await writer.wait_closed()
    except OSError:
        # The worker was faster.
        return
