"""The control server of a worker and its front end: a real socket, a real receiver, a real server of weights."""

import asyncio
import json
import mmap
import sys
import tempfile
import threading
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.faults.transfers import announcement, settled
from tests.support.narrowing import some
from trinity_bus.inference.errors import EngineDeadError
from trinity_bus.inference.weight_sync import ControlClient, _Worker
from trinity_bus.weights.errors import WeightTransferError
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.receiver import TransferProgress, WeightReceiver
from trinity_bus.weights.transport import Source, source_of
from trinity_bus.weights.vllm.control import TO_FRONT_END, ControlServer, TransferTold


class FakeEngine:
    """Has a worker that opens its control socket."""

    def __init__(self, *, shared: bool = False) -> None:
        self.receiver = WeightReceiver(shared=shared)
        self.folder = Path()

    async def collective_rpc(self, method: str, args: tuple[str]) -> list[str]:
        assert method == "trinity_open_control"
        self.folder = Path(args[0])
        assert self.folder.stat().st_mode & 0o077 == 0
        self.control = ControlServer(self.receiver, self.folder / "0.sock")
        return [str(self.folder / "0.sock")]


@pytest.fixture
def server() -> Iterator[WeightServer]:
    made = WeightServer(timeout_s=5)
    yield made
    made.close()


@asynccontextmanager
async def opened(engine: FakeEngine) -> AsyncIterator[ControlClient]:
    control = await ControlClient.open(engine)
    assert not engine.folder.exists()
    assert engine.folder.parent == Path(tempfile.gettempdir())
    try:
        yield control
    finally:
        await control.close()
        engine.receiver.close()


def wanted(server: WeightServer, version: int, checksum: str, timeout_s: float = 5) -> Source:
    return source_of(announcement(server, version, checksum, "a"), "a", timeout_s)


OTHER_WORKER = """
import sys
from pathlib import Path
from trinity_bus.weights.receiver import TransferProgress, WeightReceiver
from trinity_bus.weights.vllm.control import TO_FRONT_END, ControlServer, TransferTold
import torch

receiver = WeightReceiver()
ControlServer(receiver, Path(sys.argv[1]))
print("here", flush=True)
for _ in sys.stdin:
    print([receiver.progress.posted_at, *(float(tensor.sum()) for _, tensor in receiver.take())], flush=True)
"""


class OfTwoProcesses(FakeEngine):
    """Has a second worker in a process of its own."""

    async def collective_rpc(self, method: str, args: tuple[str]) -> list[str]:
        paths = await super().collective_rpc(method, args)
        paths.append(str(self.folder / "other.sock"))
        self.other = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "ignore", "-c", OTHER_WORKER, paths[-1], stdin=PIPE, stdout=PIPE
        )
        await self.said()
        return paths

    async def said(self) -> bytes:
        assert self.other.stdout is not None
        return await self.other.stdout.readline()

    async def taken(self) -> list[float]:
        """When the other was ready for a first byte, which is never, and what is in its tensors."""
        assert self.other.stdin is not None
        self.other.stdin.write(b"\n")
        return list(json.loads(await self.said()))


async def test_what_the_first_worker_has_received_the_others_map(server: WeightServer) -> None:
    engine = OfTwoProcesses(shared=True)
    async with opened(engine) as control:
        # Of one bucket, of several, and of other sizes: the memory is another one then.
        for version, size in enumerate((1000, 1000, 3_000_000)):
            tensors = [("w", torch.full((size,), version + 1.0)), ("x", torch.full((7,), 2.0))]
            checksum = server.stage(version, tensors)
            progress = await control.receive(wanted(server, version, checksum))
            assert (progress.state, progress.checksum, progress.nbytes) == ("ready", checksum, 4 * (size + 7))
            assert await engine.taken() == [0, (version + 1) * size, 14]
            assert [float(tensor.sum()) for _, tensor in engine.receiver.take()] == [(version + 1) * size, 14]
            maps = Path(f"/proc/{engine.other.pid}/maps").read_text(encoding="utf-8")
            assert maps.count("memfd:weights") == 1
        assert engine.other.stdin is not None
        engine.other.stdin.close()
        await engine.other.wait()


def test_memory_that_holds_another_version_is_refused(server: WeightServer) -> None:
    first, other = WeightReceiver(shared=True), WeightReceiver()
    checksum = server.stage(1, [("w", torch.ones(10))])
    first.start(wanted(server, 1, checksum))
    there = some(settled(first).shared)
    for announced, shared, said in (
        (wanted(server, 1, "0" * 64), there, "another version"),
        (wanted(server, 1, checksum), replace(there, manifest_at=mmap.PAGESIZE * 9), "the manifest cannot be read"),
    ):
        other.start(announced, shared=shared)
        progress = settled(other)
        assert progress.state == "failed"
        assert said in progress.error
        other.cancel()
    first.close()
    other.close()


async def test_a_transfer_that_fails_or_cannot_begin_is_told_with_the_reason(server: WeightServer) -> None:
    engine = FakeEngine()
    async with opened(engine) as control:
        with pytest.raises(WeightTransferError, match="not staged"):
            await control.receive(wanted(server, 7, "0" * 64))
        with pytest.raises(WeightTransferError, match="cancel it first"):
            await control.receive(wanted(server, 7, "0" * 64))
        engine.receiver.cancel()
        checksum = server.stage(8, [("w", torch.ones(10))])
        assert (await control.receive(wanted(server, 8, checksum))).state == "ready"


async def test_one_that_hangs_counts_as_failed_at_last(server: WeightServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity_bus.weights.receiver._GRACE_S", 0.0)
    monkeypatch.setattr("trinity_bus.inference.weight_sync._LOOK_S", 0.02)
    monkeypatch.setattr(WeightReceiver, "start", hanging(WeightReceiver.start))

    async with opened(FakeEngine()) as control:
        with pytest.raises(WeightTransferError, match="nothing has moved"):
            await control.receive(wanted(server, 0, "0" * 64, timeout_s=0.05))


def hanging(start: Any) -> Any:
    """A start whose thread never comes to run."""

    def begin(self: WeightReceiver, *arguments: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("trinity_bus.weights.receiver._Transfer.run", lambda _: None)
            start(self, *arguments)

    return begin


async def test_what_is_done_after_a_transfer_is_given_up_comes_after_its_begin(
    server: WeightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control server's thread may come to read the order long after it was written."""
    let_it_read, start = threading.Event(), WeightReceiver.start

    def late(self: WeightReceiver, *arguments: Any) -> None:
        assert let_it_read.wait(20)
        start(self, *arguments)

    monkeypatch.setattr(WeightReceiver, "start", late)

    engine = FakeEngine()
    async with opened(engine) as control:
        receiving = asyncio.create_task(control.receive(wanted(server, 7, "0" * 64)))
        await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.wait([receiving])
        asyncio.get_running_loop().call_later(0.05, let_it_read.set)
        await control.drained(20)
        engine.receiver.cancel()
        checksum = server.stage(8, [("w", torch.ones(10))])
        assert (await control.receive(wanted(server, 8, checksum))).state == "ready"


async def test_a_worker_without_an_answer_is_a_dead_engine(
    server: WeightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(WeightReceiver, "start", lambda *_: released.wait(20))

    async with opened(FakeEngine()) as control:
        receiving = asyncio.create_task(control.receive(wanted(server, 7, "0" * 64)))
        await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.wait([receiving])
        with pytest.raises(EngineDeadError, match=r"no answer within 0\.05 s"):
            await control.drained(0.05)
        released.set()


async def test_a_door_that_is_closed_is_a_dead_engine(server: WeightServer) -> None:
    engine = FakeEngine()
    async with opened(engine) as control:
        control._workers[0].writer.write(b"\0\0\0\5no co")
        with pytest.raises(EngineDeadError):
            await control.receive(wanted(server, 0, "0" * 64))


async def test_a_wait_for_what_a_worker_says_that_is_cancelled_loses_nothing() -> None:
    stream = asyncio.StreamReader()
    worker = _Worker(stream, None)  # type: ignore[arg-type]  # it says nothing itself
    told = [TransferTold(number, TransferProgress()) for number in range(2)]
    frames = b"".join(map(TO_FRONT_END.frame, told))
    stream.feed_data(frames[:6])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await worker.hear()
    stream.feed_data(frames[6:])
    stream.feed_eof()
    assert [await worker.hear() for _ in told] == told
    with pytest.raises(EngineDeadError, match="is gone"):
        await worker.hear()
