"""How soon a mesh serves the new version after one end of its transfer was killed, by method, phase and victim.

Real: the broker, the coordinator, all three methods, announcements, receivers, SIGKILL. FAKE: there is no engine and no
training; the model is 8 MiB of one number, so that a mixture of two versions would be seen. A victim is started again
at once, forked from a process that has imported torch, so that the figures are of the protocol, not of an import.

The goal is that of the protocol: all explorers serve the new version within ``sync_timeout_s`` plus 2 s of the victim's
restart, and those that did not die within as much of the kill.
"""

import asyncio
import statistics
from collections import defaultdict

from benchmarks._cluster import cluster_to_measure
from benchmarks._options import parser
from benchmarks._report import less, report
from benchmarks._weight_faults.mesh import FaultyMesh, Recovery, every_kill, faults
from benchmarks._weight_faults.workers import METHODS, FaultMethod

_MARGIN_S = 2.0
ROUNDS = 2


def main() -> None:
    options = parser(__doc__).parse_args()
    sync_timeout_s, explorers = (2.0, 2) if options.short else (5.0, 3)
    methods: tuple[FaultMethod, ...] = ("memory",) if options.short else METHODS
    with cluster_to_measure() as cluster:
        recovered: defaultdict[tuple[FaultMethod, str, str], list[Recovery]] = defaultdict(list)
        for method in methods:
            folder = cluster.folder / method
            folder.mkdir()
            mesh = FaultyMesh(cluster.kafka, folder, explorers=explorers, sync_timeout_s=sync_timeout_s, method=method)
            with mesh.running():
                # Of a short run, each victim at the first phase.
                kills = every_kill(ROUNDS)[: 2 if options.short else None]
                for recovery in asyncio.run(faults(mesh, kills, limit_s=60.0)):
                    recovered[method, recovery.phase, recovery.victim].append(recovery)
                    print(f"{method}: {recovery}", flush=True)
    bound = sync_timeout_s + _MARGIN_S
    rows = []
    for (method, phase, victim), found in recovered.items():
        times = [recovery.whole_s for recovery in found]
        what = f"{method}, {phase}, {victim} killed"
        rows.append(less(f"{what}: all serve it, median", statistics.median(times), "s"))
        rows.append(less(f"{what}: all serve it, worst", max(times), "s", bound))
        if victim == "explorer":
            worst = max(recovery.others_s for recovery in found)
            rows.append(less(f"{what}: the others serve it, worst", worst, "s", bound))
    count = sum(len(found) for found in recovered.values())
    report(
        "weight_faults",
        f"Recovery from {count} kills, {explorers} explorers, sync_timeout {sync_timeout_s:g} s",
        rows,
        options,
        notes=["no version was torn and nothing hung, or this would have ended with an error"],
    )


if __name__ == "__main__":
    main()
