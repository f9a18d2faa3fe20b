"""A mesh for measurements: a real broker, a real coordinator, real explorers around a fake engine, each a process."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks._cluster import Cluster, environment, service
from schemas import ExplorerHeartbeat
from schemas.topics import EXPLORER_EVENTS
from trinity_bus.broker import EmbeddedBroker
from trinity_bus.bus import Bus
from trinity_bus.config import KafkaSettings, env_name
from trinity_bus.runtime.process import Child, tail

LIMIT_S = 120.0
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_s: float
    rss_mib: float


def usage(pid: int) -> Usage:
    """Return what a process and its living descendants use; the CPU time of those that ended is their parents'."""
    cpu_s = rss = 0.0
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            cpu_s += sum(process.cpu_times()[:4])
            rss += process.memory_info().rss
    return Usage(cpu_s, rss / 2**20)


@dataclass(slots=True)
class Mesh:
    kafka: KafkaSettings
    folder: Path
    environment: Mapping[str, str]
    broker: EmbeddedBroker | None
    children: dict[str, Child] = field(default_factory=dict)
    _started: dict[str, tuple[list[str | Path], Mapping[str, str]]] = field(default_factory=dict)

    def start_coordinator(self) -> None:
        self.start("coordinator", service("coordinator"), {})

    def start_explorer(self, name: str, more: Mapping[str, str] | None = None) -> None:
        command: list[str | Path] = [sys.executable, "-m", "benchmarks._scheduling.explorer"]
        self.start(name, command, {env_name("explorer.name"): name, **(more or {})})

    def start(self, name: str, command: list[str | Path], more: Mapping[str, str]) -> None:
        log = self.folder / f"{name}.log"
        self._started[name] = command, more
        self.children[name] = Child(command, env={**self.environment, **more}, output=log)

    def start_again(self, name: str) -> None:
        self.children[name].kill()
        self.start(name, *self._started[name])

    def check(self) -> None:
        for name, child in self.children.items():
            if child.poll() is not None:
                raise RuntimeError(f"{name} has ended with {child.poll()}: {tail(self.folder / f'{name}.log')}")

    @property
    def pids(self) -> dict[str, int]:
        pids = {name: child.pid for name, child in self.children.items()}
        if self.broker is not None and self.broker.pid is not None:
            pids["broker"] = self.broker.pid
        return pids

    def usages(self) -> dict[str, Usage]:
        found: dict[str, Usage] = {}
        for name, pid in self.pids.items():
            role = "explorers" if name.startswith("explorer") else name
            one, before = usage(pid), found.get(role, Usage(0.0, 0.0))
            found[role] = Usage(before.cpu_s + one.cpu_s, before.rss_mib + one.rss_mib)
        return found


@contextlib.contextmanager
def mesh(cluster: Cluster, settings: Mapping[str, str]) -> Iterator[Mesh]:
    kafka = cluster.unused()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    own = {**environment(kafka, settings), "PYTHONPATH": path}
    logs = cluster.folder / kafka.namespace
    logs.mkdir()
    made = Mesh(kafka, logs, own, cluster.broker)
    try:
        yield made
    finally:
        for child in made.children.values():
            child.kill()


async def ready(made: Mesh, bus: Bus, explorers: int) -> None:
    seen: set[str] = set()
    deadline = time.monotonic() + LIMIT_S
    async with bus.reader(EXPLORER_EVENTS, start="beginning", expect=(ExplorerHeartbeat,)) as events:
        while len(seen) < explorers:
            for received in await events.batch(0.5):
                if isinstance(received.record, ExplorerHeartbeat):
                    seen.add(received.record.explorer)
            made.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {sorted(seen)} of {explorers} explorers have joined within {LIMIT_S:g} s")
