"""Commands that are run as a user gives them, such as the demo, and what their processes use meanwhile."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from workers.demo.subjects import COPY
from workers.runs import SUMMARY

ROOT: Final = Path(__file__).parents[1]
_SAMPLE_S: Final = 0.1
_MEMORY_S: Final = 0.5
_HIGHER: Final = 1.01
"""What is resident of all processes, over the most that was, from which on it is counted without what they share: that
takes 60 ms for each GiB, of a machine that has other things to do."""
_TITLE: Final = "trinity-bus: "


@dataclass(slots=True)
class Used:
    began_s: float
    samples: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since the start, and seconds of a processor until then."""

    def until(self, moment_s: float) -> float:
        return max((used for at, used in self.samples if at <= moment_s), default=0.0)


class Watch:
    def __init__(self, process: psutil.Process, name: str, *, memory: bool) -> None:
        self._process = process
        self._memory = memory
        self._most_resident = 0
        self._name_of_all = name
        self._names: dict[int, str] = {process.pid: name}
        self._used: dict[tuple[int, str], float] = {}
        self.began = time.time()
        self.services: dict[str, Used] = {}
        self.peak_bytes = 0
        """Of all processes together at one moment; what some share is counted once."""

    def cpu_s(self, moment: float) -> float:
        """Return the seconds of a processor that all have used until a moment, in seconds since the Unix epoch."""
        return sum(service.until(moment - self.began) for service in self.services.values())

    def look(self) -> None:
        now, resident = time.time() - self.began, 0
        processes = [self._process, *self._process.children(recursive=True)]
        for process in processes:
            try:
                with process.oneshot():
                    name, times = self._name(process), process.cpu_times()
                    resident += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            # A process that becomes something else keeps its number; what it has used stays with what it was.
            before = sum(used for (pid, was), used in self._used.items() if pid == process.pid and was != name)
            self._used[process.pid, name] = times.user + times.system - before
            self.services.setdefault(name, Used(now))
        for name, service in self.services.items():
            service.samples.append((now, sum(used for (_, whose), used in self._used.items() if whose == name)))
        if self._memory and resident > _HIGHER * self._most_resident:
            self._most_resident = resident
            self.peak_bytes = max(self.peak_bytes, sum(map(held_bytes, processes)))

    def _name(self, process: psutil.Process) -> str:
        if process.pid == self._process.pid:
            return self._name_of_all
        command = " ".join(process.cmdline())
        if process.name() == "java":
            name = "Kafka"
        elif command.startswith(_TITLE):
            name = command.removeprefix(_TITLE).strip()
        else:
            name = self._names.get(process.pid) or self._names.get(process.ppid(), self._name_of_all)
        self._names[process.pid] = name
        return name


def held_bytes(process: psutil.Process) -> int:
    """Return the bytes of memory that a process holds, of what it shares its part."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0


def watched(
    command: Sequence[str | Path], name: str, environment: Mapping[str, str] | None = None, *, memory: bool = False
) -> Watch:
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **(environment or {})}) as process:  # noqa: S603 - our own command lines
        watch = Watch(psutil.Process(process.pid), name, memory=memory)
        while process.poll() is None:
            watch.look()
            time.sleep(_MEMORY_S if memory else _SAMPLE_S)
    return watch


def run_demo(
    *options: str, subject: str = COPY.name, environment: Mapping[str, str] | None = None, memory: bool = False
) -> tuple[dict[str, Any], Watch]:
    """Run the demo in a folder that is thrown away. Returns its summary and what its processes used.

    One that has not learned ends with an error, and counts: it has a summary.
    """
    with tempfile.TemporaryDirectory(prefix="trinity-bus-bench-") as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "workers.cli.app", "demo", subject, "--run-dir", str(run_dir), *options]
        watch = watched(command, "demo", environment, memory=memory)
        return read(run_dir / SUMMARY), watch


def read(path: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return summary
