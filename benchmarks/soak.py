"""Soak: whether memory, files, sockets or topics grow, in a mesh with a kill every minute, and over a day of records.

Two parts, each of which says by how much something grows after the first third of it, in which caches fill:

* **live** (``--minutes``, a kill a minute): the real services around a fake engine and a fake trainer (``_soak.live``).
* **records** (``--hours``): what a day of the demo's mesh writes, through coordinator and index (``_soak.records``).

A day has five million tasks and three million samples: half an hour of one core each.
"""

import logging
import tempfile
from pathlib import Path

import uvloop

from benchmarks._cluster import cluster_to_measure
from benchmarks._options import parser
from benchmarks._report import Row, report
from benchmarks._scheduling.mesh import mesh
from benchmarks._soak import live, records
from benchmarks._soak.growth import MIN_POINTS, Points, growth
from benchmarks.scheduling import Bars, progress_bars
from trinity_bus.runtime.heap import collect_young_only, freeze_gc

PARTS = ("live", "records")
KILL_S = 60.0
GOAL_MIB = 16.0
GOAL_CACHE_MIB = 64.0
"""Of what has a cache that fills for longer: the JVM's heap until it is collected, the page cache of the index."""
GOAL_HANDLES = 2.0
"""Open files, sockets, threads: one may be seen amid a connection that is being made anew."""
GOAL_SHARE = 0.02
"""Of what is remembered of the past on purpose."""


def grown(name: str, points: Points, unit: str, goal: float | None) -> list[Row]:
    """Return how much of something there is, and by how much it has grown; nothing where it was hardly looked at."""
    if len(points) < MIN_POINTS:
        return []
    return [
        Row(f"{name}: most", max(value for _, value in points), unit, better="lower"),
        Row(f"{name}: growth", growth(points), unit, goal=goal, better="lower"),
    ]


def live_rows(found: live.Soaked) -> list[Row]:
    """Of the mesh."""
    rows = [
        Row("live: minutes", found.seconds / 60, "min"),
        Row("live: kills", found.kills, ""),
        Row("live: tasks", found.tasks, ""),
        Row("live: tasks not answered exactly once", found.unanswered, "", goal=0, better="lower"),
    ]
    for service, held in found.held.items():
        # The trainer's side is fake: what it holds says nothing.
        if service == "consumer":
            continue
        memory = GOAL_CACHE_MIB if service in {"broker", "console"} else GOAL_MIB
        for what, unit, goal in (
            ("rss_mib", "MiB", memory),
            ("files", "", GOAL_HANDLES),
            ("sockets", "", GOAL_HANDLES),
            ("threads", "", GOAL_HANDLES),
        ):
            points = [(at, getattr(one, what)) for at, one in held]
            rows += grown(f"live: {service}: {'memory' if what == 'rss_mib' else what}", points, unit, goal)
    rows += grown("live: topics", found.topics, "", 0)
    rows += grown("live: files on disk", found.disk_files, "", None)
    return rows + grown("live: bytes on disk", found.disk_mib, "MiB", None)


def record_rows(minutes: int, folder: Path, bars: Bars) -> list[Row]:
    """Of coordinator and index."""
    name = f"{minutes / 60:g} h of records"
    coordinator = records.through_coordinator(minutes, bars("coordinator"))
    rows = [
        Row(f"{name}: coordinator: tasks", coordinator.records, ""),
        *grown(f"{name}: coordinator: memory", coordinator.points("memory"), "MiB", GOAL_MIB),
        *grown(f"{name}: coordinator: files", coordinator.points("files"), "", 0),
    ]
    for what, label in (("entries", "entries"), ("entries_kib", "changelog"), ("batches", "batches")):
        points = coordinator.points(what)
        unit = "KiB" if what == "entries_kib" else ""
        rows += grown(f"{name}: coordinator: {label}", points, unit, GOAL_SHARE * max(value for _, value in points))
    rows += grown(f"{name}: coordinator: explorers", coordinator.points("explorers"), "", 0)
    index = records.through_index(minutes, folder, bars("index"))
    return [
        *rows,
        Row(f"{name}: index: samples", index.records, ""),
        *grown(f"{name}: index: memory", index.points("memory"), "MiB", GOAL_CACHE_MIB),
        *grown(f"{name}: index: files", index.points("files"), "", 0),
        *grown(f"{name}: index: files on disk", index.points("stored_files"), "", 0),
        *grown(f"{name}: index: bytes a sample", index.points("bytes_a_sample"), "B", None),
    ]


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__)
    arguments.add_argument("--minutes", type=float, default=60.0, help="of the live part")
    arguments.add_argument("--hours", type=float, default=24.0, help="of records")
    arguments.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = arguments.parse_args()
    kill_s, minutes, hours = KILL_S, options.minutes, options.hours
    if options.short:
        # Two kills, before the broker's: what only begins then would end.
        kill_s, minutes, hours = 4.0, 8 / 60, 4 / 60
    rows: list[Row] = []
    more: dict[str, object] = {}
    with progress_bars() as bars:
        if "live" in options.parts:
            with cluster_to_measure() as cluster, mesh(cluster, live.SETTINGS) as made:
                found = uvloop.run(live.soak(made, cluster.folder, minutes, kill_s, bars("kills")))
            rows += live_rows(found)
            more["memory_mib"] = {
                name: [(round(at), round(one.rss_mib, 1)) for at, one in held] for name, held in found.held.items()
            }
        if "records" in options.parts:
            # As the services do. What dies here dies on purpose.
            freeze_gc()
            collect_young_only()
            logging.getLogger("workers.coordinator").setLevel(logging.ERROR)
            with tempfile.TemporaryDirectory(prefix="trinity-bus-bench-") as folder:
                rows += record_rows(max(4, round(hours * 60)), Path(folder), bars)
    report("soak", "What grows in a mesh that goes on and on", rows, options, more=more)


if __name__ == "__main__":
    main()
