"""Soak: whether memory, files, sockets or topics grow, in a mesh with a kill every minute, and over a day of records.

Three parts, each of which says by how much something grows after the first third of it, in which caches fill:

* **live** (``--minutes``, a kill a minute): the real services around a fake engine and a fake trainer (``_soak.live``).
* **coordinator** (``--hours``): what a day of the demo's mesh writes, through the coordinator (``_soak.records``).
  Beside its memory, its changelog and the topics that it compacts, each collection of its state is counted, and what
  grows is kept by name.
* **index** (``--hours``): likewise, through the console's index.

A day has five million tasks and three million samples: half an hour of one core each. With ``--rate 20`` it is 1.7
million tasks, in a quarter of an hour, and as many of all the rest.
"""

import logging
import tempfile
from pathlib import Path

import uvloop

from benchmarks._cluster import cluster_to_measure
from benchmarks._options import parser
from benchmarks._report import Row, less, report
from benchmarks._scheduling.mesh import mesh
from benchmarks._soak import live, records
from benchmarks._soak.growth import MIN_POINTS, Points, grows, growth
from trinity_bus.runtime.heap import collect_young_only, freeze_gc

PARTS = ("live", "coordinator", "index")
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
        less(f"{name}: most", max(value for _, value in points), unit),
        less(f"{name}: growth", growth(points), unit, goal),
    ]


def live_rows(found: live.Soaked) -> list[Row]:
    rows = [
        Row("live: minutes", found.seconds / 60, "min"),
        Row("live: kills", found.kills, ""),
        Row("live: tasks", found.tasks, ""),
        less("live: tasks not answered exactly once", found.unanswered, "", 0),
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


def coordinator_rows(name: str, rate: float, found: records.Passed) -> list[Row]:
    rows = [
        Row(f"{name}: tasks", found.records, ""),
        Row(f"{name}: tasks a second", rate, "1/s"),
        *grown(f"{name}: memory", found.points("memory"), "MiB", GOAL_MIB),
        *grown(f"{name}: files", found.points("files"), "", 0),
    ]
    for what, label, unit in (
        ("blocks", "Python's blocks of memory", ""),
        ("items", "items in its collections", ""),
        ("entries", "entries of the changelog", ""),
        ("entries_kib", "changelog", "KiB"),
        ("batches_kept", "records of batches", ""),
        ("versions_kept", "records of version-history", ""),
        ("experiences_needed", "experiences that are needed", ""),
    ):
        points = found.points(what)
        rows += grown(f"{name}: {label}", points, unit, GOAL_SHARE * max(value for _, value in points))
    return [
        *rows,
        Row(f"{name}: collections", len(found.ways), ""),
        less(f"{name}: collections that grow", len(growing(found)), "", 0),
    ]


def growing(found: records.Passed) -> dict[str, float]:
    """Return by how much each collection of the coordinator grows that does."""
    counted = {way: points for way, points in found.collections().items() if len(points) >= MIN_POINTS}
    return {way: growth(points) for way, points in counted.items() if grows(points)}


def index_rows(name: str, found: records.Passed) -> list[Row]:
    return [
        Row(f"{name}: samples", found.records, ""),
        *grown(f"{name}: memory", found.points("memory"), "MiB", GOAL_CACHE_MIB),
        *grown(f"{name}: files", found.points("files"), "", 0),
        *grown(f"{name}: files on disk", found.points("stored_files"), "", 0),
        *grown(f"{name}: bytes a sample", found.points("bytes_a_sample"), "B", None),
    ]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--minutes", type=float, default=60.0, help="of the live part")
    arguments.add_argument("--hours", type=float, default=24.0, help="of records")
    arguments.add_argument("--rate", type=float, default=records.RATE, help="tasks a second of these hours")
    arguments.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = arguments.parse_args()
    kill_s, minutes, hours = KILL_S, options.minutes, options.hours
    if options.short:
        # Two kills, before the broker's: what only begins then would end.
        kill_s, minutes, hours = 4.0, 8 / 60, 4 / 60
    rows: list[Row] = []
    more: dict[str, object] = {}
    if "live" in options.parts:
        with cluster_to_measure() as cluster, mesh(cluster, live.SETTINGS) as made:
            found = uvloop.run(live.soak(made, cluster.folder, minutes, kill_s))
        rows += live_rows(found)
        more["memory_mib"] = {
            name: [(round(at), round(one.rss_mib, 1)) for at, one in held] for name, held in found.held.items()
        }
    past = max(MIN_POINTS, round(hours * 60))
    name = f"{past / 60:g} h of records"
    # As the services do. What dies here dies on purpose.
    freeze_gc()
    collect_young_only()
    logging.getLogger("workers.coordinator").setLevel(logging.ERROR)
    if "coordinator" in options.parts:
        coordinator = records.through_coordinator(past, options.rate)
        rows += coordinator_rows(f"{name}: coordinator", options.rate, coordinator)
        more["collections_that_grow"] = growing(coordinator)
    if "index" in options.parts:
        with tempfile.TemporaryDirectory(prefix="trinity-bus-bench-") as folder:
            rows += index_rows(f"{name}: index", records.through_index(past, Path(folder)))
    report("soak", "What grows in a mesh that goes on and on", rows, options, more=more)


if __name__ == "__main__":
    main()
