"""The real services for minutes or hours, one of them killed every minute, and what each of them holds.

Real: broker, coordinator, explorers with their runners, console with its index, SIGKILL. FAKE, as in ``scheduling``:
the engine and the trainer. Of those that are killed, each is measured just before its death, so always at about the
same age: what grows there from life to life lies outside of it, in the log or in files. One explorer and the console
are never killed, and tell of growth within a process.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
from aiokafka.admin import AIOKafkaAdminClient

from benchmarks._scheduling import crash
from benchmarks._scheduling.explorer import THINK_S
from benchmarks._scheduling.mesh import Mesh, ready
from trinity_bus.bus import Bus
from trinity_bus.bus.client.connection import client_options
from trinity_bus.runtime.ports import free_port

VICTIMS: Final = ("coordinator", "explorer-1", "consumer", "broker")
KEPT: Final = ("explorer-0", "console")
SAMPLES_A_KILL: Final = 4
"""Of what is never killed."""
SETTINGS: Final[Mapping[str, str]] = crash.SETTINGS | {
    # So that what is remembered of the past on purpose is full soon.
    "coordinator.dedup_window": "2000",
}


@dataclass(frozen=True, slots=True)
class Holding:
    rss_mib: float
    files: float
    """Open, sockets not among them."""
    sockets: float
    threads: float


@dataclass(slots=True)
class Soaked:
    seconds: float = 0.0
    kills: int = 0
    tasks: int = 0
    unanswered: int = 0
    held: dict[str, list[tuple[float, Holding]]] = field(default_factory=dict)
    topics: list[tuple[float, float]] = field(default_factory=list)
    disk_files: list[tuple[float, float]] = field(default_factory=list)
    disk_mib: list[tuple[float, float]] = field(default_factory=list)


def holding(pid: int) -> Holding:
    rss = files = sockets = threads = 0
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            connected = len(process.net_connections(kind="all"))
            rss += process.memory_info().rss
            files += process.num_fds() - connected
            sockets += connected
            threads += process.num_threads()
    return Holding(rss / 2**20, files, sockets, threads)


async def soak(mesh: Mesh, folder: Path, minutes: float, kill_s: float) -> Soaked:
    found = Soaked()
    mesh.start_coordinator()
    for name in ("explorer-0", "explorer-1"):
        mesh.start_explorer(name, {THINK_S: str(crash.THINK_S)})
    async with Bus(mesh.kafka, client_id="soak") as bus:
        await bus.ensure_topics()
        mesh.start_console(free_port(), folder / "index")
        await ready(mesh, bus, 2)
        history = crash.History(mesh, bus)
        began = time.monotonic()
        kills = max(1, round(minutes * 60 / kill_s))
        async with history.fed():
            for number, victim in zip(range(kills), itertools.cycle(VICTIMS), strict=False):
                for part in range(1, SAMPLES_A_KILL + 1):
                    await history.go_on(began + kill_s * (number + part / SAMPLES_A_KILL))
                    await asyncio.to_thread(_look, mesh, KEPT, found, time.monotonic() - began)
                await asyncio.to_thread(_look, mesh, (victim,), found, time.monotonic() - began)
                await _look_around(bus, folder, found, time.monotonic() - began)
                await history.kill(victim)
                found.kills += 1
                print(f"kill {found.kills} of {kills}: {victim}", flush=True)
        cost = crash.Cost()
        await history.account(cost)
        found.seconds = time.monotonic() - began
        found.tasks, found.unanswered = cost.trajectories, cost.unanswered
    return found


def _look(mesh: Mesh, names: tuple[str, ...], found: Soaked, at: float) -> None:
    pids = mesh.pids
    for name in names:
        found.held.setdefault(name, []).append((at, holding(pids[name])))


async def _look_around(bus: Bus, folder: Path, found: Soaked, at: float) -> None:
    admin = AIOKafkaAdminClient(**client_options(bus.settings, "soak"))
    await admin.start()
    try:
        found.topics.append((at, len(await admin.list_topics())))
    finally:
        await admin.close()
    sizes = await asyncio.to_thread(lambda: list(_sizes(folder)))
    found.disk_files.append((at, len(sizes)))
    found.disk_mib.append((at, sum(sizes) / 2**20))


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        # It may be removed while it is looked at.
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                yield path.stat().st_size
