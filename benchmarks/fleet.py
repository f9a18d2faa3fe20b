"""Fleet: what a thousand, four thousand and ten thousand explorers cost the one coordinator.

The coordinator's machine, schedule, codecs and what it writes are the real ones, in simulated time that their processor
time is part of; explorers are numbers that write what real ones do, and brokers are a constant (``_fleet``). So a share
of processor time is that of one core like this one, without what fetching and sending cost, and a latency has no
network in it. Processor time is that of the thread alone: other programs of a busy machine slow it, but are not in it.

Of each size, in this order: all join; a version is published, and all take it; two are, the second while the first is
on its way, and all take the second; nothing happens; tasks fill the slots; nothing happens while all slots are taken;
attempts end, and as many tasks come, at ``RATE``; one explorer of a hundred is killed; another coordinator takes over.
At last, how long batches take over the least that they could, by the order of dispatch (``_fleet.makespan``).
"""

import logging
import statistics
from itertools import product

from benchmarks._fleet.coordinator import CoordinatorCost
from benchmarks._fleet.makespan import FULL_SPEED, GROUP, MakespanSimulation
from benchmarks._fleet.mesh import SYNC_S, SimulatedMesh
from benchmarks._options import parser
from benchmarks._report import Row, less, report
from trinity_bus.runtime.memory import collect_young_only, freeze_gc

SIZES = ((1000, 64), (4000, 64), (10_000, 8))
"""Explorers, and slots of each."""
RATE = 2500.0
STRETCH_S = 5.0
"""Simulated seconds of each stretch in which something is measured a second."""
JOIN_S = 10.0
SEED = 1
SEEDS = 5
GOAL_LONGEST_MS = 100.0
GOAL_IDLE_SHARE = 0.5
GOAL_RECORD_KIB = 1024.0


def rows_of(explorers: int, slots: int, rate: float, stretch_s: float) -> list[Row]:
    freeze_gc()
    mesh = SimulatedMesh(explorers, slots, SEED)
    joined = mesh.join(JOIN_S)
    published = mesh.publish()
    began = mesh.now
    overtaken = mesh.publish_in_a_row(SYNC_S / 2)
    overtaken_s = mesh.now - began
    mesh.run(JOIN_S)
    idle = mesh.run(stretch_s)
    handed_out = mesh.fill()
    mesh.run(JOIN_S)
    taken = mesh.run(stretch_s)
    working = mesh.work(rate, stretch_s)
    waits = sorted(mesh.dispatched)
    killed = mesh.kill(0.01)
    took_over_s = mesh.coordinator.restored_s()
    all_spent = (joined, published, overtaken, idle, handed_out, taken, working, killed)
    name = f"{explorers:,} explorers of {slots} slots"

    def longest(what: str, spent: CoordinatorCost) -> Row:
        return less(f"{name}: {what}: longest decision", spent.longest_s * 1e3, "ms", GOAL_LONGEST_MS)

    def share(what: str, spent: CoordinatorCost, goal: float) -> Row:
        return less(f"{name}: {what}: share of a core", spent.cpu_s / stretch_s, "", goal)

    return [
        longest("all join", joined),
        longest("all take a version", published),
        less(f"{name}: all take a version: processor time", published.cpu_s, "s"),
        longest("two versions in a row", overtaken),
        less(f"{name}: two versions in a row: until all serve the second", overtaken_s, "s"),
        less(f"{name}: two versions in a row: transfers given up", mesh.given_up, "", 0),
        share("idle", idle, GOAL_IDLE_SHARE),
        less(f"{name}: idle: heartbeats", idle.signals / stretch_s, "1/s"),
        longest("tasks fill the slots", handed_out),
        Row(f"{name}: tasks fill the slots: rate of one core", mesh.capacity / handed_out.cpu_s, "tasks/s", goal=RATE),
        share("idle, slots taken", taken, GOAL_IDLE_SHARE),
        share(f"at {rate:g} tasks/s", working, 1.0),
        longest(f"at {rate:g} tasks/s", working),
        less(f"{name}: free slot to order committed, p50", statistics.median(waits) * 1e3, "ms"),
        less(f"{name}: free slot to order committed, p99", waits[int(0.99 * (len(waits) - 1))] * 1e3, "ms"),
        less(f"{name}: written for each task", working.written / (rate * stretch_s) / 1024, "KiB"),
        longest("one of a hundred is killed", killed),
        less(f"{name}: another coordinator takes over", took_over_s, "s"),
        less(f"{name}: largest record", max(spent.largest for spent in all_spent) / 1024, "KiB", GOAL_RECORD_KIB),
    ]


def makespan_rows(seeds: int) -> list[Row]:
    rows: list[Row] = []
    ways = (("tasks wait for slots", FULL_SPEED // GROUP, None), ("all begin at once", 64, None), ("runs apart", 32, 1))
    for (name, slots, per_part), longest_first in product(ways, (False, True)):
        order = "longest first" if longest_first else "order of submission"
        made = (MakespanSimulation(s, slots, per_part=per_part, longest_first=longest_first) for s in range(seeds))
        for epoch, ratios in enumerate(zip(*(one.epochs() for one in made), strict=True), 1):
            rows.append(less(f"makespan, {name}: {order}, epoch {epoch}", statistics.mean(ratios), "of the least"))
    return rows


def main() -> None:
    options = parser(__doc__).parse_args()
    # As the service does.
    collect_young_only()
    # What dies here dies on purpose, by the dozen.
    logging.getLogger("workers.coordinator").setLevel(logging.ERROR)
    rows: list[Row] = []
    for explorers, slots in ((20, 2),) if options.short else SIZES:
        rows += rows_of(explorers, slots, 50.0 if options.short else RATE, 1.0 if options.short else STRETCH_S)
    rows += makespan_rows(1 if options.short else SEEDS)
    report("fleet", "The coordinator with very many explorers, in simulated time", rows, options)


if __name__ == "__main__":
    main()
