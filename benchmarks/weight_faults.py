"""How soon a mesh serves the new version after one end of its transfer was killed, by phase and victim.

    .venv/bin/python -m benchmarks.weight_faults [--rounds N] [--explorers N] [--sync-timeout S]

Real: the broker, the coordinator, links over gloo, announcements, receivers, SIGKILL. FAKE: there is no engine and no
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
from tests.support.weight_faults import PHASES, VICTIMS, FaultyMesh, Recovery, every_kill, faults
from trinity_bus.broker import EmbeddedBroker
from trinity_bus.config import BrokerSettings, KafkaSettings

_MARGIN_S = 2.0


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6, help="kills at each phase of each victim")
    parser.add_argument("--explorers", type=int, default=3)
    parser.add_argument("--sync-timeout", type=float, default=5.0, help="limit of a transfer, s")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recovered = _run(Path(folder), options.rounds, options.explorers, options.sync_timeout)
    bound = options.sync_timeout + _MARGIN_S
    found: dict[tuple[str, str], list[Recovery]] = defaultdict(list)
    for recovery in recovered:
        found[recovery.phase, recovery.victim].append(recovery)
    rows = []
    for phase in PHASES:
        for victim in VICTIMS:
            times = [recovery.whole_s for recovery in found[phase, victim]]
            what = f"{victim} killed, {phase}"
            rows.append(Row(f"{what}: all serve it, median", statistics.median(times), "s"))
            rows.append(Row(f"{what}: all serve it, worst", max(times), "s", bound, "lower"))
            if victim == "explorer":
                worst = max(recovery.others_s for recovery in found[phase, victim])
                rows.append(Row(f"{what}: the others serve it, worst", worst, "s", bound, "lower"))
    report(
        "weight_faults",
        f"Recovery from {len(recovered)} kills, {options.explorers} explorers, sync_timeout {options.sync_timeout:g} s",
        rows,
        notes=["no version was torn and nothing hung, or this would have ended with an error"],
    )


def _run(folder: Path, rounds: int, explorers: int, sync_timeout_s: float) -> list[Recovery]:
    with EmbeddedBroker(BrokerSettings(port=0, data_dir=folder / "broker")) as broker:
        kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
        mesh_folder = folder / "mesh"
        mesh_folder.mkdir()
        mesh = FaultyMesh(kafka, mesh_folder, explorers=explorers, sync_timeout_s=sync_timeout_s)
        with mesh.running():
            return asyncio.run(faults(mesh, every_kill(rounds), limit_s=60.0))


if __name__ == "__main__":
    main()
