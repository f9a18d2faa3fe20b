"""How soon a mesh serves the new version after one end of its transfer was killed, by method, phase and victim.

    .venv/bin/python -m benchmarks.weight_faults [--rounds N] [--explorers N] [--sync-timeout S] [--methods ...]

Real: the broker, the coordinator, all three methods, announcements, receivers, SIGKILL. FAKE: there is no engine and no
training; the model is 8 MiB of one number, so that a mixture of two versions would be seen. A victim is started again
at once, forked from a process that has imported torch, so that the figures are of the protocol, not of an import.

The goal is that of the protocol: all explorers serve the new version within ``sync_timeout_s`` plus 2 s of the victim's
restart, and those that did not die within as much of the kill.
"""

import argparse
import asyncio
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks._report import Row, report
from tests.support.faults.weight_workers import METHODS
from tests.support.faults.weights import FaultyMesh, Recovery, every_kill, faults
from trinity_bus.broker import EmbeddedBroker
from trinity_bus.config import BrokerSettings, KafkaSettings

type Found = dict[tuple[str, str, str], list[Recovery]]
"""By method, phase and victim."""

_MARGIN_S = 2.0


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2, help="kills of each victim at each phase, by each method")
    parser.add_argument("--explorers", type=int, default=3)
    parser.add_argument("--sync-timeout", type=float, default=5.0, help="limit of a transfer, s")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recovered = _run(Path(folder), options)
    bound = options.sync_timeout + _MARGIN_S
    rows = []
    for (method, phase, victim), found in recovered.items():
        times = [recovery.whole_s for recovery in found]
        what = f"{method}, {phase}, {victim} killed"
        rows.append(Row(f"{what}: all serve it, median", statistics.median(times), "s", better="lower"))
        rows.append(Row(f"{what}: all serve it, worst", max(times), "s", bound, "lower"))
        if victim == "explorer":
            worst = max(recovery.others_s for recovery in found)
            rows.append(Row(f"{what}: the others serve it, worst", worst, "s", bound, "lower"))
    kills = sum(len(found) for found in recovered.values())
    report(
        "weight_faults",
        f"Recovery from {kills} kills, {options.explorers} explorers, sync_timeout {options.sync_timeout:g} s",
        rows,
        notes=["no version was torn and nothing hung, or this would have ended with an error"],
    )


def _run(folder: Path, options: argparse.Namespace) -> Found:
    found: Found = defaultdict(list)
    with EmbeddedBroker(BrokerSettings(port=0, data_dir=folder / "broker")) as broker:
        for method in options.methods:
            kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, namespace=f"faults-{method}")
            mesh_folder = folder / method
            mesh_folder.mkdir()
            mesh = FaultyMesh(
                kafka,
                mesh_folder,
                explorers=options.explorers,
                sync_timeout_s=options.sync_timeout,
                method=method,
            )
            with mesh.running():
                for recovery in asyncio.run(faults(mesh, every_kill(options.rounds), limit_s=60.0)):
                    found[method, recovery.phase, recovery.victim].append(recovery)
                    print(f"{method}: {recovery}", flush=True)
    return found


if __name__ == "__main__":
    main()
