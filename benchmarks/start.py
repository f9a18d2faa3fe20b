"""How long the demo takes to its first reward, warm and cold, what its processes use until then, and all of it.

Warm is as ``make setup`` leaves a machine. Cold is without Python's bytecode, without the broker's start-up archive and
formatted folder, and without what vLLM remembers of models; only what must be downloaded is there, and the system may
still have files in memory. Processor time is what does not hang on who else uses the machine: on two cores, half of the
sum is the least that the time can be.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks._options import parser
from benchmarks._report import Row, report
from trinity_bus.broker.folders import cache_dir
from trinity_bus.broker.jars import jar_folder
from trinity_bus.config import Settings

WARM_S: Final = 25.0
COLD_S: Final = 45.0
WHOLE_S: Final = 60.0
_SAMPLE_S: Final = 0.1
_TITLE: Final = "trinity-bus: "


@dataclass(slots=True)
class Used:
    """What one service has used until a moment."""

    began_s: float
    samples: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since the start, and seconds of a processor until then."""

    def until(self, moment_s: float) -> float:
        """Return seconds of a processor."""
        return max((used for at, used in self.samples if at <= moment_s), default=0.0)


class Watch:
    """Follows a process and all below it.

    Args:
        process: The demo's.
    """

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._began = time.monotonic()
        self._names: dict[int, str] = {process.pid: "demo"}
        self._used: dict[tuple[int, str], float] = {}
        self.services: dict[str, Used] = {}

    def look(self) -> None:
        """Take a sample."""
        now = time.monotonic() - self._began
        for process in [self._process, *self._process.children(recursive=True)]:
            try:
                with process.oneshot():
                    name, times = self._name(process), process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            # A process that becomes something else keeps its number; what it has used stays with what it was.
            before = sum(used for (pid, was), used in self._used.items() if pid == process.pid and was != name)
            self._used[process.pid, name] = times.user + times.system - before
            self.services.setdefault(name, Used(now))
        for name, service in self.services.items():
            service.samples.append((now, sum(used for (_, whose), used in self._used.items() if whose == name)))

    def _name(self, process: psutil.Process) -> str:
        """Return the service that a process is, or is part of."""
        if process.pid == self._process.pid:
            return "demo"
        command = " ".join(process.cmdline())
        if process.name() == "java":
            name = "Kafka"
        elif command.startswith(_TITLE):
            name = command.removeprefix(_TITLE).strip()
        else:
            name = self._names.get(process.pid) or self._names.get(process.ppid(), "demo")
        self._names[process.pid] = name
        return name


def run_demo(environment: Mapping[str, str], *options: str) -> tuple[dict[str, Any], Watch]:
    """Run the demo in a folder that is thrown away. Returns its summary and what its processes used."""
    with tempfile.TemporaryDirectory(prefix="trinity-bus-bench-") as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "workers.cli.app", "demo", "--run-dir", str(run_dir), *options]
        with subprocess.Popen(command, env={**os.environ, **environment}) as demo:  # noqa: S603 - our own command line
            watch = Watch(psutil.Process(demo.pid))
            while demo.poll() is None:
                watch.look()
                time.sleep(_SAMPLE_S)
        if demo.returncode:
            raise subprocess.CalledProcessError(demo.returncode, command)
        summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        return summary, watch


def cold_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a run that finds nothing prepared, but for what would have to be downloaded."""
    jars = jar_folder(cache_dir(Settings().broker))
    there = folder / "broker" / jars.name
    there.mkdir(parents=True)
    for jar in jars.glob("*.jar"):
        (there / jar.name).symlink_to(jar)
    return {
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
        "TRINITY_BUS_BROKER__CACHE_DIR": str(folder / "broker"),
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "MPLCONFIGDIR": str(folder / "matplotlib"),
    }


def rows(label: str, summary: Mapping[str, Any], watch: Watch, goal_s: float) -> list[Row]:
    """Return the figures of one run."""
    first = summary["time_to_first_reward_s"]
    used = {name: service.until(first) for name, service in watch.services.items()}
    found = [
        Row(f"{label}: first reward", first, "s", goal_s, "lower"),
        Row(f"{label}: processor time until then", sum(used.values()), "s", None, "lower"),
        Row(
            f"{label}: processors idle until then",
            first * (os.cpu_count() or 1) - sum(used.values()),
            "s",
            None,
            "lower",
        ),
    ]
    for name, service in watch.services.items():
        found.append(Row(f"{label}: {name}, begins", service.began_s, "s", None, "lower"))
        found.append(Row(f"{label}: {name}, processor time", used[name], "s", None, "lower"))
    return found


def main() -> None:
    """Run, then report."""
    options = parser(__doc__).parse_args()
    # What comes after the first reward is not looked at.
    short = ["--steps", "1", *(["--explorers", "1"] if options.short else [])]
    found = rows("warm", *run_demo({}, *short), WARM_S)
    if not options.short:
        with tempfile.TemporaryDirectory(prefix="trinity-bus-cold-") as folder:
            found += rows("cold", *run_demo(cold_environment(Path(folder)), *short), COLD_S)
        summary, _ = run_demo({})
        found.append(Row("the whole demo", summary["total_seconds"], "s", WHOLE_S, "lower"))
        found.append(Row("the whole demo: steps", len(summary["steps"]), "", None, "lower"))
    report("start", f"The demo's start on {os.cpu_count()} cores", found, options)


if __name__ == "__main__":
    main()
