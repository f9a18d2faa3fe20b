"""An explorer's process; and what the wire can do: a plain gloo broadcast."""

import asyncio
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import uvloop

from benchmarks._receivers import BareReceiver, Timed, follow
from schemas import Sampling
from trinity_bus.bus import Bus
from trinity_bus.config import ExplorerSettings, KafkaSettings, Settings
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.runners.fork_server import ForkServer
from trinity_bus.training.ranks.launch import join_store
from workers.explorer.service import ExplorerService

LIMIT_S = 60.0
BUSY_REQUESTS = 8


class ExplorerSide:
    def __init__(self, kafka: KafkaSettings, name: str, model: str | None, store_port: int) -> None:
        self.settings = Settings(
            kafka=kafka,
            explorer=ExplorerSettings(
                name=name, model_path=model, dtype="float32", max_model_len=128, max_tokens=64, drain_s=0.01
            ),
        )
        self._store_port = store_port
        self._fork_server: ForkServer | None = None
        self._engine: Any = Timed(BareReceiver())
        self._group: Any = None
        self._buffer = torch.zeros(0, dtype=torch.uint8)
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        if self.settings.explorer.model_path is not None:
            self._fork_server = ForkServer(self.settings)
            self._engine = Timed(InferenceEngine(self.settings.explorer))
            await self._engine.start()
            await self._fork_server.ready()
        self._store = join_store("127.0.0.1", self._store_port, timeout_s=LIMIT_S)

    async def handle(self, bus: Bus, command: str, *arguments: Any) -> float:
        """Do what is told: ``join PREFIX RANK SIZE BYTES``, ``raw``, ``explore``, ``first``, ``rest`` or ``stop``.

        Return the seconds of ``raw``; when the first byte of the last version could come for ``first``; else 0.
        """
        for task in self._tasks:
            if task.done():
                task.result()
        match command:
            case "join":
                prefix, rank, size, nbytes = arguments
                self._group = await asyncio.to_thread(raw_group, self._store, prefix, rank, size)
                self._buffer = torch.ones(nbytes, dtype=torch.uint8)
            case "raw":
                return await asyncio.to_thread(raw_broadcast, self._group, self._buffer)
            case "first":
                first: float = self._engine.first_byte_at
                return first
            case "explore":
                self._explore(bus)
            case _:
                for task in self._tasks:
                    task.cancel()
                if self._tasks:
                    await asyncio.wait(self._tasks)
                self._tasks = []
        return 0.0

    def _explore(self, bus: Bus) -> None:
        if self._fork_server is None:
            self._tasks = [asyncio.create_task(follow(self.settings, bus, self._engine))]
            return
        self._tasks = [asyncio.create_task(ExplorerService(self.settings, bus, self._engine, self._fork_server).run())]
        self._tasks += [asyncio.create_task(keep_busy(self._engine, i)) for i in range(BUSY_REQUESTS)]

    async def stop(self) -> None:
        if self._fork_server is not None:
            await self._engine.stop()
            self._fork_server.close()


def explorer_side(pipe: Connection, kafka: KafkaSettings, name: str, model: str | None, store_port: int) -> None:
    async def main() -> None:
        side = ExplorerSide(kafka, name, model, store_port)
        await side.start()
        pipe.send("started")
        async with Bus(side.settings.kafka, client_id=name) as bus:
            command: list[Any] = []
            while command[:1] != ["stop"]:
                command = list(await asyncio.to_thread(pipe.recv))
                pipe.send(await side.handle(bus, *command))
        await side.stop()

    uvloop.run(main())


async def keep_busy(engine: Any, number: int) -> None:
    while True:
        await engine.generate([3 + number, 4, 5], Sampling(), 4)


def raw_group(store: Any, prefix: str, rank: int, size: int) -> Any:
    from torch._C._distributed_c10d import ProcessGroupGloo
    from torch.distributed import PrefixStore

    return ProcessGroupGloo(PrefixStore(prefix, store), rank, size, timedelta(seconds=LIMIT_S))


def raw_broadcast(group: Any, buffer: torch.Tensor) -> float:
    """Move a buffer from rank 0 to all others; seconds from when all were ready until this one is done."""
    from torch._C._distributed_c10d import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = 0
    group.barrier().wait()
    began = time.perf_counter()
    group.broadcast([buffer], options).wait()
    return time.perf_counter() - began
