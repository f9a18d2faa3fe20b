"""Gauges of the coordinator's state, for whoever collects metrics; only the one that works tells of the mesh."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from schemas import BatchLifecycleState, BatchRecord
from trinity_bus import awake
from trinity_bus.coordination import CoordinatorMachine
from trinity_bus.coordination.batches.batch import Batch
from trinity_bus.coordination.dispatch.explorer import Explorer
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.metrics import BATCH_DURATION

_METER = metrics.get_meter("workers.coordinator")


class BatchAges:
    """Since when each open batch is in its state, by this process's clock; after a restart, since then."""

    def __init__(self, clock: Callable[[], float] = awake.now) -> None:
        self._clock = clock
        self._since: dict[str, tuple[str, str, float]] = {}
        self._lock = threading.Lock()

    def moved(self, record: BatchRecord) -> None:
        now = self._clock()
        kind = record.batch_type
        with self._lock:
            before = self._since.pop(record.batch_id, None)
            if record.state not in (BatchLifecycleState.FINALIZED, BatchLifecycleState.ABORTED):
                self._since[record.batch_id] = (record.state.value, kind, now)
        if before is not None and before[0] != record.state.value:
            BATCH_DURATION.record(now - before[2], {names.RL_BATCH_STATE: before[0], names.RL_BATCH_TYPE: kind})

    def follow(self, batches: Mapping[str, Batch]) -> None:
        now = self._clock()
        with self._lock:
            self._since = {name: (b.state.value, b.batch_type, now) for name, b in batches.items()}

    def counts(self) -> dict[tuple[str, str], int]:
        with self._lock:
            return Counter((state, kind) for state, kind, _ in self._since.values())

    def oldest(self) -> dict[tuple[str, str], float]:
        """Seconds that the batch that has been in a state for longest has been in it, by state and type."""
        now = self._clock()
        ages: dict[tuple[str, str], float] = {}
        with self._lock:
            for state, kind, since in self._since.values():
                ages[state, kind] = max(ages.get((state, kind), 0.0), now - since)
        return ages


BATCH_AGES = BatchAges()


def _slots(machine: CoordinatorMachine) -> Iterable[Observation]:
    live = _live(machine)
    busy = sum(len(explorer.assigned) for explorer in live)
    yield Observation(busy, {names.RL_SLOT_STATE: "busy"})
    # One that asks for less than it has been handed has none that is idle.
    idle = sum(max(0, explorer.slots - len(explorer.assigned)) for explorer in live)
    yield Observation(idle, {names.RL_SLOT_STATE: "idle"})


def _by_state(values: Mapping[tuple[str, str], float]) -> Iterable[Observation]:
    for (state, kind), value in values.items():
        yield Observation(value, {names.RL_BATCH_STATE: state, names.RL_BATCH_TYPE: kind})


def _live(machine: CoordinatorMachine) -> list[Explorer]:
    # Metrics are collected on a thread of their own, while explorers may join.
    return [explorer for explorer in list(machine.fleet.explorers.values()) if not explorer.gone]


GAUGES: tuple[tuple[str, str, str, Callable[[CoordinatorMachine], Iterable[Observation]]], ...] = (
    ("rl.coordinator.tasks", "{task}", "Tasks accepted and not ended.", lambda m: [Observation(len(m.ledger.tasks))]),
    (
        "rl.coordinator.attempts",
        "{attempt}",
        "Attempts that explorers are at.",
        lambda m: [Observation(len(m.ledger.running))],
    ),
    ("rl.coordinator.explorers", "{explorer}", "Live explorers.", lambda m: [Observation(len(_live(m)))]),
    ("rl.coordinator.slots", "{slot}", "Slots of live explorers, by state.", _slots),
    ("rl.coordinator.batches", "{batch}", "Open batches, by state.", lambda _: _by_state(BATCH_AGES.counts())),
    (
        "rl.coordinator.batch.age",
        "s",
        "How long the oldest batch has been in its state.",
        lambda _: _by_state(BATCH_AGES.oldest()),
    ),
)


def watch(machine: Callable[[], CoordinatorMachine | None]) -> None:
    """Keep gauges of a machine's state. To be called once; ``machine`` gives None while this process stands by."""

    def active(_options: CallbackOptions) -> Iterable[Observation]:
        yield Observation(int(machine() is not None))

    def observe(
        read: Callable[[CoordinatorMachine], Iterable[Observation]], _options: CallbackOptions
    ) -> Iterable[Observation]:
        now = machine()
        return () if now is None else read(now)

    _METER.create_observable_gauge(
        "rl.coordinator.active", [active], description="1 where this coordinator works, 0 where it stands by."
    )
    for name, unit, description, read in GAUGES:
        _METER.create_observable_gauge(name, [partial(observe, read)], unit=unit, description=description)
