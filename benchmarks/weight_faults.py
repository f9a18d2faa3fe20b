"""How soon a mesh serves the new version after one end of its transfer was killed, by method, phase and victim.

Real: the broker, the coordinator, all three methods, announcements, receivers, SIGKILL. FAKE: there is no engine and no
training; the model is 8 MiB of one number, so that a mixture of two versions would be seen. A victim is started again
at once, forked from a process that has imported torch, so that the figures are of the protocol, not of an import.

The goal is that of the protocol: all explorers serve the new version within ``sync_timeout_s`` plus 2 s of the victim's
restart, and those that did not die within as much of the kill.
"""

import argparse
import asyncio
import statistics
from collections import defaultdict

from benchmarks._cluster import Cluster, cluster_to_measure
from benchmarks._options import parser
from benchmarks._report import Row, report
from benchmarks._weight_faults.mesh import FaultyMesh, Recovery, every_kill, faults
from benchmarks._weight_faults.workers import METHODS

type Found = dict[tuple[str, str, str], list[Recovery]]
"""By method, phase and victim."""

_MARGIN_S = 2.0
SHORT_KILLS = 2
"""Of a short run: each victim at the first phase."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=2, help="kills of each victim at each phase, by each method")
    arguments.add_argument("--explorers", type=int, default=3)
    arguments.add_argument("--sync-timeout", type=float, default=5.0, help="limit of a transfer, s")
    arguments.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    options = arguments.parse_args()
    if options.short:
        options.rounds, options.explorers, options.sync_timeout, options.methods = 1, 2, 2.0, ["memory"]
    with cluster_to_measure() as cluster:
        recovered = _run(cluster, options)
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
        options,
        notes=["no version was torn and nothing hung, or this would have ended with an error"],
    )


def _run(cluster: Cluster, options: argparse.Namespace) -> Found:
    found: Found = defaultdict(list)
    for method in options.methods:
        folder = cluster.folder / method
        folder.mkdir()
        mesh = FaultyMesh(
            cluster.kafka, folder, explorers=options.explorers, sync_timeout_s=options.sync_timeout, method=method
        )
        with mesh.running():
            kills = every_kill(options.rounds)[: SHORT_KILLS if options.short else None]
            for recovery in asyncio.run(faults(mesh, kills, limit_s=60.0)):
                found[method, recovery.phase, recovery.victim].append(recovery)
                print(f"{method}: {recovery}", flush=True)
    return found


if __name__ == "__main__":
    main()
