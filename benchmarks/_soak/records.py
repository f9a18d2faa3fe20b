"""Hours of records through the real coordinator and the console's real index, without a broker, and what stays of them.

The coordinator is that of ``fleet``, in simulated time: two explorers of 32 slots answer so many tasks a second, a
trainer makes a version of each train batch, members and clients come and go (``_soak.life``), and every ten minutes
another coordinator takes over from the changelog. A day of it has 17,000 batches that clients name, 1,440 explorers, 96
trainers and 144 takeovers. The index takes up the log of ``console``, four batches of 512 samples a minute.
"""

import ctypes
import gc
import math
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from benchmarks import console
from benchmarks._soak.growth import MIN_POINTS, Points
from benchmarks._soak.held import held
from benchmarks._soak.life import LivedInMesh
from trinity_bus.console.index.store import Store

EXPLORERS, SLOTS = 2, 32
RATE: Final = 60.0
MINUTE_S: Final = 60.0
TAKE_OVER_EVERY: Final = 10
"""Minutes."""
LOOK_EVERY: Final = 5
"""Minutes, between two looks at the coordinator."""
INDEX_EVERY: Final = 10
"""The same of the index."""
SEED: Final = 1


@dataclass(slots=True)
class Passed:
    """What was measured while records passed. It takes 8 bytes a figure, so that it hardly grows itself."""

    records: int = 0
    measured: dict[str, tuple[array[float], array[float]]] = field(default_factory=dict)
    ways: dict[str, tuple[array[float], array[float]]] = field(default_factory=dict)

    def add(self, at: float, **values: float) -> None:
        _note(self.measured, at, values)

    def look_into(self, at: float, roots: Mapping[str, object]) -> int:
        """Note what is in collections; how many items in all."""
        found = held(roots)
        # What is empty is gone from the walk, with all below it.
        _note(self.ways, at, dict.fromkeys(self.ways, 0.0) | found)
        return sum(found.values())

    def points(self, name: str) -> Points:
        return list(zip(*self.measured[name], strict=True))

    def collections(self) -> dict[str, Points]:
        return {way: list(zip(*points, strict=True)) for way, points in self.ways.items()}


def _note(measured: dict[str, tuple[array[float], array[float]]], at: float, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        times, noted = measured.setdefault(name, (array("d"), array("d")))
        times.append(at)
        noted.append(value)


def own_memory_mib() -> float:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return float(psutil.Process().memory_info().rss) / 2**20


def through_coordinator(minutes: int, rate: float) -> Passed:
    mesh = LivedInMesh(EXPLORERS, SLOTS, SEED)
    mesh.begin()
    found = Passed()
    look_every = min(LOOK_EVERY, max(1, minutes // (2 * MIN_POINTS)))
    for minute in range(minutes):
        mesh.minute(rate, MINUTE_S)
        coordinator = mesh.coordinator
        if minute % TAKE_OVER_EVERY == TAKE_OVER_EVERY - 1:
            coordinator.take_over()
        if minute % look_every == 0:
            found.records = mesh.answered
            _look(mesh, found)
    return found


def _look(mesh: LivedInMesh, found: Passed) -> None:
    entries = mesh.coordinator.entries
    roots = {"machine": mesh.coordinator.machine, "retention": mesh.kept.retention}
    found.add(
        mesh.now,
        memory=own_memory_mib(),
        blocks=sys.getallocatedblocks(),
        files=psutil.Process().num_fds(),
        entries=len(entries),
        entries_kib=sum(map(len, entries.values())) / 1024,
        items=found.look_into(mesh.now, roots),
        batches_kept=len(mesh.kept.batches),
        versions_kept=len(mesh.kept.versions),
        experiences_needed=mesh.kept.needed,
    )


def through_index(minutes: int, folder: Path) -> Passed:
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
    return found
