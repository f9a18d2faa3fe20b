"""What the coordinator says about itself: counters, gauges and log lines."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from schemas import BatchLifecycleState, BatchRecord, ModelVersion
from trinity_bus.coordination import CoordinatorMachine, Fact, staleness
from trinity_bus.coordination.batches import Batch
from trinity_bus.coordination.commands import Observe
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.metrics import BATCH_DURATION, STALENESS, TASK_RETRIES, TASKS

log = logging.getLogger("workers.coordinator")

_METER = metrics.get_meter("workers.coordinator")
FACTS = _METER.create_counter("rl.coordinator.facts", description="What the coordinator has noticed, by kind.")
BATCHES = _METER.create_counter("rl.batches", unit="{batch}", description="Batches ended, by state.")
LATENCY = _METER.create_histogram(
    "rl.coordinator.transaction.duration", unit="s", description="From records read to decisions committed."
)

_LEVELS = {
    Fact.EXPLORER_JOINED: logging.INFO,
    Fact.EXPLORER_LEFT: logging.INFO,
    Fact.ATTEMPT_FAILED: logging.WARNING,
    Fact.EXPLORER_LOST: logging.WARNING,
    Fact.ATTEMPT_TIMED_OUT: logging.WARNING,
    Fact.TASK_FAILED: logging.ERROR,
    Fact.SYNC_FAILED: logging.WARNING,
    Fact.STARVED: logging.WARNING,
}
"""All others are counted, and logged for those who look closely."""


def observe(observed: Observe) -> None:
    """Counts and logs a fact."""
    FACTS.add(1, {"rl.fact": observed.fact.value})
    if observed.fact in (Fact.ATTEMPT_FAILED, Fact.ATTEMPT_TIMED_OUT):
        TASK_RETRIES.add(1)
    elif observed.fact is Fact.TASK_COMPLETED:
        TASKS.add(1, {names.RL_TASK_STATUS: observed.detail})
    elif observed.fact is Fact.TASK_FAILED:
        TASKS.add(1, {names.RL_TASK_STATUS: "failed"})
    level = _LEVELS.get(observed.fact, logging.DEBUG)
    if log.isEnabledFor(level):
        log.log(level, "%s: %s: %s", observed.fact.value.replace("_", " "), observed.subject, observed.detail)


class BatchAges:
    """Since when each open batch is in its state, by this process's clock; after a restart, since then.

    Args:
        clock: Seconds, steady.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, tuple[str, str, float]] = {}
        self._lock = threading.Lock()

    def moved(self, record: BatchRecord) -> None:
        """A batch has gone to another state."""
        now = self._clock()
        kind = record.batch_type
        with self._lock:
            before = self._since.pop(record.batch_id, None)
            if record.state not in (BatchLifecycleState.FINALIZED, BatchLifecycleState.ABORTED):
                self._since[record.batch_id] = (record.state.value, kind, now)
        if before is not None and before[0] != record.state.value:
            BATCH_DURATION.record(now - before[2], {names.RL_BATCH_STATE: before[0], names.RL_BATCH_TYPE: kind})

    def follow(self, batches: Mapping[str, Batch]) -> None:
        """Takes the open batches of a machine as they are, after a restart or a takeover."""
        now = self._clock()
        with self._lock:
            self._since = {name: (b.state.value, b.batch_type, now) for name, b in batches.items()}

    def counts(self) -> dict[tuple[str, str], int]:
        """Open batches by state and type."""
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


def batch_moved(record: BatchRecord) -> None:
    """Counts and logs where a batch stands."""
    BATCH_AGES.moved(record)
    if record.state is BatchLifecycleState.FINALIZED:
        BATCHES.add(1, {names.RL_BATCH_STATE: record.state.value, names.RL_BATCH_TYPE: record.batch_type})
        if record.batch_type == "train":
            for entry in record.manifest:
                if entry.parts:
                    STALENESS.record(staleness(record.sequence, entry.version_min))
    elif record.state is BatchLifecycleState.ABORTED:
        BATCHES.add(1, {names.RL_BATCH_STATE: record.state.value, names.RL_BATCH_TYPE: record.batch_type})
    level = logging.INFO if record.state is BatchLifecycleState.FINALIZED else logging.DEBUG
    if log.isEnabledFor(level):
        log.log(
            level,
            "%s batch %s (sequence %d) is %s: %d of %d tasks done, %d failed",
            record.batch_type,
            record.batch_id,
            record.sequence,
            record.state,
            record.completed_task_count,
            record.expected_task_count,
            record.failed_task_count,
        )


def announced(record: ModelVersion) -> None:
    """Logs an announcement."""
    members = ", ".join(member.explorer for member in record.members) or "nobody"
    log.info("version %d, epoch %d, for %s", record.version, record.epoch, members)


def watch(machine: Callable[[], CoordinatorMachine]) -> None:
    """Keeps gauges of a machine's state, for whoever collects metrics. To be called once.

    Args:
        machine: The machine of now: a coordinator that takes over again has another.
    """

    def tasks(_options: CallbackOptions) -> list[Observation]:
        running = len(machine().ledger.running)
        queued = len(machine().ledger.tasks) - running
        return [Observation(queued, {"rl.task.state": "queued"}), Observation(running, {"rl.task.state": "running"})]

    def batches(_options: CallbackOptions) -> list[Observation]:
        return [Observation(count, _of(*place)) for place, count in BATCH_AGES.counts().items()]

    def ages(_options: CallbackOptions) -> list[Observation]:
        return [Observation(age, _of(*place)) for place, age in BATCH_AGES.oldest().items()]

    def explorers(_options: CallbackOptions) -> list[Observation]:
        # Metrics are collected on a thread of their own, while explorers may join.
        return [Observation(sum(1 for explorer in list(machine().fleet.explorers.values()) if not explorer.gone))]

    _METER.create_observable_gauge("rl.coordinator.tasks", [tasks], description="Open tasks, by state.")
    _METER.create_observable_gauge("rl.coordinator.batches", [batches], description="Open batches, by state.")
    _METER.create_observable_gauge(
        "rl.coordinator.batch.age", [ages], unit="s", description="How long the oldest batch has been in its state."
    )
    _METER.create_observable_gauge("rl.coordinator.explorers", [explorers], description="Live explorers.")


def _of(state: str, kind: str) -> dict[str, str]:
    return {names.RL_BATCH_STATE: state, names.RL_BATCH_TYPE: kind}
