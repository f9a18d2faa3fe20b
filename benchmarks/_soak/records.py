"""Hours of records through the real coordinator and the console's real index, without a broker, and what stays of them.

The coordinator is that of ``fleet``, in simulated time: two explorers of 64 slots answer as many tasks a second as the
demo's do, a trainer makes a version of each batch, each simulated minute an explorer is killed and starts anew, and
every ten minutes another coordinator takes over from the changelog. The index takes up the log of ``console``, four
batches of 512 samples a minute.
"""

import ctypes
import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from benchmarks import console
from benchmarks._fleet.mesh import SimulatedMesh
from benchmarks._soak.growth import Points
from trinity_bus.console.index import Store

EXPLORERS, SLOTS = 2, 64
RATE: Final = 60.0
"""Tasks a second."""
MINUTE_S: Final = 60.0
TAKE_OVER_EVERY: Final = 10
"""Minutes."""
INDEX_EVERY: Final = 10
"""Minutes of records that are indexed between two looks."""
SEED: Final = 1


@dataclass(slots=True)
class Passed:
    """What was measured while records passed."""

    records: int = 0
    measured: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, at: float, **values: float) -> None:
        """Note what is held at a moment."""
        for name, value in values.items():
            self.measured.setdefault(name, []).append((at, value))

    def points(self, name: str) -> Points:
        """Of one thing."""
        return self.measured[name]


def own_memory_mib() -> float:
    """Return what this process holds once it has let go of what it can."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return float(psutil.Process().memory_info().rss) / 2**20


def through_coordinator(minutes: int, told: Callable[[int, int], None]) -> Passed:
    """Let so many simulated minutes pass, with all that is killed meanwhile."""
    mesh = SimulatedMesh(EXPLORERS, SLOTS, SEED)
    mesh.join(1.0)
    mesh.publish()
    mesh.trains = True
    mesh.fill()
    found, process = Passed(), psutil.Process()
    for minute in range(minutes):
        mesh.work(RATE, MINUTE_S)
        mesh.start_anew(minute % EXPLORERS)
        if minute % TAKE_OVER_EVERY == TAKE_OVER_EVERY - 1:
            mesh.coordinator.take_over()
        machine, entries = mesh.coordinator.machine, mesh.coordinator.entries
        found.add(
            mesh.now,
            memory=own_memory_mib(),
            files=process.num_fds(),
            entries=len(entries),
            entries_kib=sum(map(len, entries.values())) / 1024,
            batches=len(machine.ledger.batches),
            explorers=len(machine.fleet.explorers),
        )
        told(minute + 1, minutes)
    found.records = mesh.answered
    return found


def through_index(minutes: int, folder: Path, told: Callable[[int, int], None]) -> Passed:
    """Have the records of so many minutes indexed."""
    log, found, process = console.Mesh(), Passed(), psutil.Process()
    a_minute = console.BATCHES_A_MINUTE * console.BATCH * console.GROUP
    looks = max(4, math.ceil(minutes / INDEX_EVERY))
    with Store(folder, texts=console.tokenizer()) as store:
        for look in range(looks):
            first, last = (minutes * a_minute * number // looks // console.GROUP for number in (look, look + 1))
            console.index_all(log, store, first * console.GROUP, last * console.GROUP)
            stored = [path.stat().st_size for path in folder.iterdir()]
            found.records = last * console.GROUP
            found.add(
                minutes * MINUTE_S * (look + 1) / looks,
                memory=own_memory_mib(),
                files=process.num_fds(),
                stored_files=len(stored),
                bytes_a_sample=sum(stored) / found.records,
            )
            told(look + 1, looks)
    return found
