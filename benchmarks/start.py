"""How long the demo takes to its first reward, warm and cold, what its processes use until then, and all of it.

Warm is as ``make setup`` leaves a machine. Cold is without Python's bytecode, without the broker's start-up archive and
formatted folder, and without what vLLM remembers of models; only what must be downloaded is there, and the system may
still have files in memory. Processor time is what does not hang on who else uses the machine: on two cores, half of the
sum is the least that the time can be.

With SmolLM2 it is the demo ``sums``, whose whole length ``make bench NAME=demo ARGS='--subject sums'`` tells.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks._demos import Watch, run_demo
from benchmarks._options import REAL, TOY, parser, subjects_of
from benchmarks._report import Row, less, report
from trinity_bus.broker.jars import jar_folder
from trinity_bus.broker.layout import cache_dir
from trinity_bus.config import Settings
from workers.demo.model import pretrained_folder
from workers.demo.subjects import COPY, SUMS

WARM_S: Final = {TOY: 25.0, REAL: 60.0}
COLD_S: Final = {TOY: 45.0, REAL: None}
WHOLE_S: Final = 60.0


def cold_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a run that finds nothing prepared, but for what would have to be downloaded."""
    jars = jar_folder(cache_dir(Settings().broker))
    there = folder / "broker" / jars.name
    there.mkdir(parents=True)
    for jar in jars.glob("*.jar"):
        (there / jar.name).symlink_to(jar)
    if (models := pretrained_folder(Settings()).parent).is_dir():
        (folder / "broker" / "models").symlink_to(models)
    return {
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
        "TRINITY_BUS_BROKER__CACHE_DIR": str(folder / "broker"),
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "MPLCONFIGDIR": str(folder / "matplotlib"),
    }


def rows(label: str, summary: Mapping[str, Any], watch: Watch, goal_s: float | None) -> list[Row]:
    first = summary["time_to_first_reward_s"]
    used = {name: service.until(first) for name, service in watch.services.items()}
    found = [
        less(f"{label}: first reward", first, "s", goal_s),
        less(f"{label}: processor time until then", sum(used.values()), "s"),
        less(f"{label}: processors idle until then", first * (os.cpu_count() or 1) - sum(used.values()), "s"),
    ]
    for name, service in watch.services.items():
        found.append(less(f"{label}: {name}, begins", service.began_s, "s"))
        found.append(less(f"{label}: {name}, processor time", used[name], "s"))
    return found


def main() -> None:
    options = parser(__doc__, subjects=True).parse_args()
    # What comes after the first reward is not looked at.
    short = ["--steps", "1", *(["--explorers", "1"] if options.short else [])]
    for subject in subjects_of(options):
        taught = (SUMS if subject == REAL else COPY).name
        found = rows("warm", *run_demo(*short, subject=taught), WARM_S[subject])
        if not options.short:
            with tempfile.TemporaryDirectory(prefix="trinity-bus-cold-") as folder:
                cold = run_demo(*short, subject=taught, environment=cold_environment(Path(folder)))
                found += rows("cold", *cold, COLD_S[subject])
        if not options.short and subject == TOY:
            summary, _ = run_demo()
            found.append(less("the whole demo", summary["total_seconds"], "s", WHOLE_S))
            found.append(less("the whole demo: steps", len(summary["steps"]), ""))
        report("start", f"The demo's start on {os.cpu_count()} cores: {taught}", found, options, subject=subject)


if __name__ == "__main__":
    main()
