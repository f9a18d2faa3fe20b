"""Scheduling: how fast tasks go round, how busy a fleet is, what a crash costs, and that memory is flat.

* throughput: tasks per second from the producer to the FINALIZED batch, how soon a batch is FINALIZED after its last
  result, and CPU time per task of every role; a real broker, coordinator and explorers, each a process, around a FAKE
  engine that costs nothing. One explorer, then eight. Beside it bare aiokafka in the same run, to tell a busy machine
  from slow code: where the machine is shared, CPU time per task says more than tasks per second.
* fleet: the share of time in which 64 explorers are busy, in simulated time, with long-tailed rollout times.
* crashes: seconds of generation that are lost when the coordinator, the trainer's side or the broker is killed, beside
  what a buffer in memory would have lost in the same history.
* memory: what the services hold while a million tasks wait in the log.

``--only`` runs some of them. ``TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS`` measures another cluster than the embedded one;
nothing is crashed there.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import uvloop

from benchmarks._cluster import Cluster, cluster_to_measure
from benchmarks._options import parser
from benchmarks._report import Row, less, report
from benchmarks._scheduling import consumer, crash, fleet, memory, throughput
from benchmarks._scheduling.explorer import THINK_S
from benchmarks._scheduling.mesh import Mesh, mesh, ready
from trinity_bus.bus import Bus
from trinity_bus.config import CoordinatorSettings

PARTS = ("throughput", "fleet", "crashes", "memory")
BATCH = 64
OFFERED_RATES = (300.0, 1000.0)
FEW, MANY = 128, 512
"""Attempts under way at once, in all explorers together. Every one more adds to the time that each of them takes as
soon as the cores are busy: the few are just enough for that, the many for the most tasks a second."""
GOAL_RATE, GOAL_P99_MS = 1500.0, 50.0
GOAL_OVER_AIOKAFKA = 10.0
GOAL_BUSY = 0.95
GOAL_GROWTH_MIB = 64.0
STALENESS = 8
SEED = 1


@dataclass(frozen=True, slots=True)
class Size:
    fleets: tuple[int, ...] = (1, 8)
    warm_up: int = 64 * BATCH
    tasks: int = 300 * BATCH
    offered: int = 120 * BATCH
    batches: int = 80
    positions: int = consumer.CHECKPOINT_EVERY
    """Of the checkpoint cycle, to crash at."""
    victims: tuple[str, ...] = crash.VICTIMS
    queued: int = 1_000_000
    fill: int = memory.WARM_UP
    """Tasks until all that is bounded is full."""
    work_s: float = 20.0
    """How long memory is watched once all is queued."""


SHORT = Size(
    fleets=(1,), warm_up=BATCH, tasks=2 * BATCH, offered=2 * BATCH, batches=4, positions=1, victims=("coordinator",),
    queued=2 * BATCH, fill=2 * BATCH, work_s=1.0
)  # fmt: skip

SETTINGS = {
    "coordinator.batch_size": str(BATCH),
    # Nothing is trained here: no batch waits for a version.
    "coordinator.max_staleness": "1000000",
    "coordinator.max_inflight_batches": "16",
}


def throughput_rows(cluster: Cluster, size: Size) -> list[Row]:
    rows: list[Row] = []
    for explorers in size.fleets:
        name = "1 explorer" if explorers == 1 else f"{explorers} explorers"
        with mesh(cluster, SETTINGS | {"explorer.slots": str(MANY // explorers)}) as made:
            most, _ = uvloop.run(_measure(made, explorers, size, ()))
        with mesh(cluster, SETTINGS | {"explorer.slots": str(FEW // explorers)}) as made:
            saturated, offered = uvloop.run(_measure(made, explorers, size, OFFERED_RATES))
            bare = uvloop.run(throughput.baseline(made.kafka, size.tasks, broker_pid=made.pids.get("broker")))
        latency = f"{name}: last result to FINALIZED"
        all_us, bare_us = sum(saturated.cpu_us.values()), sum(bare.cpu_us.values())
        rows += [
            Row(f"{name}: end to end", saturated.rate, "tasks/s"),
            less(f"{latency}, p50", saturated.latency(0.5), "ms"),
            less(f"{latency}, p99", saturated.latency(0.99), "ms", GOAL_P99_MS),
            less(f"{latency}, all produced, p50", saturated.latency(0.5, produced=True), "ms"),
            less(f"{latency}, all produced, p99", saturated.latency(0.99, produced=True), "ms"),
            Row(f"{name}, {MANY} under way: end to end", most.rate, "tasks/s", goal=GOAL_RATE),
            less(f"{name}, {MANY} under way: last result to FINALIZED, p50", most.latency(0.5), "ms"),
            less(f"{name}, {MANY} under way: last result to FINALIZED, p99", most.latency(0.99), "ms"),
            *(row for rate, measured in offered.items() for row in _offered_rows(f"{name}: the same", rate, measured)),
            *(less(f"{name}: CPU of {role}", us, "us/task") for role, us in saturated.cpu_us.items()),
            less(f"{name}: CPU of all", all_us, "us/task"),
            Row(f"{name}: bare aiokafka, 2 records a task", bare.rate, "tasks/s"),
            less(f"{name}: CPU of bare aiokafka and its broker", bare_us, "us/task"),
            less(f"{name}: CPU of all over that", all_us / bare_us, "x", GOAL_OVER_AIOKAFKA),
        ]
    return rows


def _offered_rows(name: str, rate: float, offered: throughput.Measured) -> list[Row]:
    goal = GOAL_P99_MS if rate == max(OFFERED_RATES) else None
    return [
        less(f"{name} at {rate:g} tasks/s, p50", offered.latency(0.5), "ms"),
        less(f"{name} at {rate:g} tasks/s, p99", offered.latency(0.99), "ms", goal),
    ]


async def _measure(
    made: Mesh, explorers: int, size: Size, rates: Sequence[float]
) -> tuple[throughput.Measured, dict[float, throughput.Measured]]:
    """Return the saturated mesh, and the mesh at each of the moderate rates."""
    async with Bus(made.kafka, client_id="benchmark") as bus:
        await _start(made, bus, explorers)
        await throughput.run(made, bus, "warm-up", size.warm_up)
        saturated = await throughput.run(made, bus, "saturated", size.tasks)
        offered = {
            rate: await throughput.run(made, bus, f"offered-{rate:g}", size.offered, rate=rate) for rate in rates
        }
    return saturated, offered


async def _start(made: Mesh, bus: Bus, explorers: int, *, think_s: float = 0.0) -> None:
    await bus.ensure_topics()
    made.start_coordinator()
    for number in range(explorers):
        made.start_explorer(f"explorer-{number}", {THINK_S: f"{think_s}"})
    await ready(made, bus, explorers)


def fleet_rows(batches: int) -> list[Row]:
    one: dict[str, float] = {"max_staleness": 0, "max_inflight_batches": 1}
    some: dict[str, float] = {"max_staleness": STALENESS, "max_inflight_batches": STALENESS + 1}
    more: dict[str, float] = {"max_staleness": 2 * STALENESS, "max_inflight_batches": 2 * STALENESS + 1}
    ways: list[tuple[str, dict[str, float], float | None]] = [
        ("synchronous: one batch at a time", one, None),
        ("synchronous, over-rollout 10 %", one | _over_rollout(0.1), None),
        (f"asynchronous, staleness <= {STALENESS}", some, None),
        (f"asynchronous, staleness <= {STALENESS}, speculative attempts", some | {"straggler_factor": 3.0}, GOAL_BUSY),
        (f"asynchronous, staleness <= {STALENESS}, over-rollout 2 %", some | _over_rollout(0.02), None),
        (f"asynchronous, staleness <= {2 * STALENESS}", more, None),
    ]
    rows = []
    for name, settings, goal in ways:
        common = {"batch_size": fleet.BATCH, "group_size": 1, "max_open_tasks": fleet.BATCH * 4 * (STALENESS + 1)}
        patient = {"explorer_timeout_s": 1e6, "task_timeout_s": 1e6}
        own = CoordinatorSettings.model_validate({**common, **patient, **settings})
        spent = fleet.Simulation(own, batches, SEED).run()
        rows += [
            Row(f"{name}: busy", spent.busy, "", goal=goal),
            Row(f"{name}: spent on what counts", spent.useful, ""),
            less(f"{name}: mean staleness", spent.staleness, "versions"),
        ]
    rows.append(Row("best possible: no batches, no versions: busy", fleet.best_possible(batches, SEED), ""))
    return rows


def _over_rollout(ratio: float) -> dict[str, float]:
    return {"over_rollout_ratio": ratio, "wait_after_min_s": 1.0}


def crash_rows(cluster: Cluster, size: Size) -> list[Row]:
    with mesh(cluster, crash.SETTINGS) as made:

        async def measure() -> crash.Cost:
            async with Bus(made.kafka, client_id="benchmark") as bus:
                await _start(made, bus, 2, think_s=crash.THINK_S)
                return await crash.History(made, bus).live(list(product(range(size.positions), size.victims)))

        cost = uvloop.run(measure())
    crashes = len(cost.crashes)

    def recovered(victim: str) -> float:
        return statistics.median(one.recovered_s for one in cost.crashes if one.victim == victim)

    name = f"{crashes} crashes, {cost.trajectories:,} trajectories"
    lost = "trajectory-seconds lost per crash"
    return [
        less(f"{name}: {lost}", cost.again_s / crashes, "s", 0),
        less(f"{name}: trajectories generated again", cost.again, "", 0),
        less(f"{name}: tasks not answered exactly once", cost.unanswered, "", 0),
        less(f"computed for the same: {lost}, buffer in memory", sum(cost.memory_s) / crashes, "s"),
        less(f"computed for the same: {lost}, saved at checkpoints", sum(cost.saved_s) / crashes, "s"),
        *(
            less(f"{victim}: SIGKILL to the next trained step, median", recovered(victim), "s")
            for victim in size.victims
        ),
    ]


def memory_rows(cluster: Cluster, size: Size) -> list[Row]:
    explorers = 2
    with mesh(cluster, SETTINGS | memory.SETTINGS) as made:

        async def measure() -> list[memory.Point]:
            async with Bus(made.kafka, client_id="benchmark") as bus:
                await _start(made, bus, explorers)
                return await memory.memory(made, bus, size.queued, warm_up=size.fill, work_s=size.work_s)

        points = uvloop.run(measure())
    rows = []
    for role, share in (("coordinator", 1), ("explorers", explorers)):
        name = role if share == 1 else f"{role}, each"
        held = [rss[role] / share for _, rss in points]
        for (when, _), mib in zip(points, held, strict=True):
            rows.append(less(f"memory of {name}: {when}", mib, "MiB"))
        growth = max(held) - held[0]
        rows.append(less(f"memory of {name}: growth", growth, "MiB", GOAL_GROWTH_MIB))
    return rows


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument(
        "--only", choices=PARTS, nargs="+", default=PARTS, help="run these parts; no others have rows"
    )
    options = arguments.parse_args()
    size = SHORT if options.short else Size()
    rows: list[Row] = []
    with cluster_to_measure() as cluster:
        parts: dict[str, Callable[[], list[Row]]] = {
            "throughput": lambda: throughput_rows(cluster, size),
            "fleet": lambda: fleet_rows(size.batches),
            "crashes": lambda: [] if cluster.broker is None else crash_rows(cluster, size),
            "memory": lambda: memory_rows(cluster, size),
        }
        for part, measure in parts.items():
            if part in options.only:
                print(f"{part} ...", flush=True)
                rows += measure()
    report(
        "scheduling",
        "Tasks through a real broker, coordinator and explorers, around an engine that costs nothing",
        rows,
        options,
        notes=(
            f"batches of {BATCH} tasks, one sample each; {FEW} attempts under way at most, where nothing else is said",
            "a latency is that of a whole batch, with the reader's",
            f"fleet: {fleet.EXPLORERS} simulated explorers, batches of {fleet.BATCH}, {fleet.TRAIN_S:g} s a train step",
            f"crashes: the trainer is a fake too; {crash.BATCH} trajectories of {crash.THINK_S:g} s in a batch",
            f"crashes: {consumer.TRAIN_S:g} s a step, a checkpoint every {consumer.CHECKPOINT_EVERY}, two explorers",
            f"rollout times of the fleet: log-normal with median {fleet.MEDIAN_S:g} s and sigma {fleet.SIGMA:g}",
        ),
    )


if __name__ == "__main__":
    main()
