"""Kills of either end of a weight transfer, at every phase of it, and how soon the mesh serves the new version.

A real broker, a real coordinator, one trainer and explorers of ``workers``, in processes of their own that
are forked from one that has imported torch. Each fault: a version is published, the victim SIGKILLs itself at its point
of the transfer, and is started again. Nobody may serve a mixture of versions, and all must serve the new version.
"""

import asyncio
import multiprocessing
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks._cluster import environment, service
from benchmarks._weight_faults.workers import PHASES, TRAINER, FaultMethod, Phase, Post, explorer, kill_order, trainer
from trinity_bus.bus import Bus
from trinity_bus.client import Synchronizer
from trinity_bus.config import KafkaSettings, Settings
from trinity_bus.runtime.process import Child, tail

type Victim = Literal["explorer", "trainer"]
VICTIMS: tuple[Victim, ...] = ("explorer", "trainer")
_POLL_S = 0.005
_STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """What became of one kill. Seconds."""

    phase: Phase
    victim: Victim
    others_s: float
    """From the kill of an explorer until every other one served the new version; 0 for a trainer."""
    whole_s: float
    """From the start of the victim's next incarnation until all explorers, it included, served the new version."""


class FaultyMesh:
    def __init__(
        self, kafka: KafkaSettings, folder: Path, *, explorers: int, sync_timeout_s: float, method: FaultMethod = "nccl"
    ) -> None:
        self.kafka = kafka.model_copy(update={"namespace": f"faults-{uuid.uuid4().hex[:12]}"})
        self.folder = folder
        self.sync_timeout_s = sync_timeout_s
        self.method: FaultMethod = method
        self.names = [f"explorer-{number}" for number in range(explorers)]
        self.version = 0
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["benchmarks._weight_faults.workers"])
        self._processes: dict[str, multiprocessing.process.BaseProcess] = {}

    @contextmanager
    def running(self) -> Iterator["FaultyMesh"]:
        (self.folder / "step").write_text("0")
        settings = {
            "telemetry.run_dir": self.folder,
            "coordinator.tick_s": 0.05,
            "coordinator.explorer_timeout_s": 2.0,
            "synchronizer.sync_timeout_s": self.sync_timeout_s,
        }
        log = self.folder / "coordinator.log"
        with Child(service("coordinator"), env=environment(self.kafka, settings), output=log) as coordinator:
            try:
                for name in (TRAINER, *self.names):
                    self.start(name)
                yield self
            except BaseException:
                print(f"coordinator: {coordinator.poll()}\n{tail(log, 100)}")
                raise
            finally:
                for process in self._processes.values():
                    process.terminate()
                    process.join(_STOP_S)
                    process.kill()
                    process.join()
                # In order, so that its last spans are written: they are held back for a second or so.
                coordinator.stop(_STOP_S)

    def start(self, name: str) -> None:
        post = Post(name, self.kafka, self.folder, self.sync_timeout_s, self.method)
        role = trainer if name == TRAINER else explorer
        process = self._context.Process(target=role, args=(post,), name=name, daemon=True)
        process.start()
        self._processes[name] = process

    def publish(self) -> int:
        self.version += 1
        partial = self.folder / "step.partial"
        partial.write_text(str(self.version))
        partial.rename(self.folder / "step")
        return self.version

    async def fault(self, synchronizer: Synchronizer, phase: Phase, victim: Victim, limit_s: float) -> Recovery:
        name = TRAINER if victim == "trainer" else self.names[0]
        kill_order(self.folder, name, phase).touch()
        version = self.publish()
        process = self._processes[name]
        async with asyncio.timeout(limit_s):
            while process.exitcode is None:  # noqa: ASYNC110 - what is waited for happens in another process
                await asyncio.sleep(_POLL_S)
        killed_at = time.monotonic()
        assert process.exitcode == -signal.SIGKILL, f"{name} ended with {process.exitcode}"
        others_s = 0.0
        if victim == "explorer":
            async with asyncio.timeout(limit_s):
                while not set(self.names[1:]) <= set(synchronizer.serving(version)):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(_POLL_S)
            others_s = time.monotonic() - killed_at
        started_at = time.monotonic()
        self.start(name)
        async with asyncio.timeout(limit_s):
            while set(synchronizer.serving(version)) != set(self.names):  # noqa: ASYNC110 - as above
                await asyncio.sleep(_POLL_S)
        torn = self.folder / "torn"
        assert not torn.exists(), torn.read_text()
        return Recovery(phase, victim, others_s, time.monotonic() - started_at)


async def faults(mesh: FaultyMesh, kills: list[tuple[Phase, Victim]], *, limit_s: float = 120.0) -> list[Recovery]:
    async with (
        Bus(mesh.kafka, client_id="faults") as bus,
        Synchronizer(Settings(kafka=mesh.kafka), bus=bus) as synchronizer,
    ):
        await synchronizer.wait_served(0, timeout_s=limit_s, explorers=mesh.names)
        return [await mesh.fault(synchronizer, phase, victim, limit_s) for phase, victim in kills]


def every_kill(rounds: int) -> list[tuple[Phase, Victim]]:
    return [(phase, victim) for _ in range(rounds) for phase in PHASES for victim in VICTIMS]
