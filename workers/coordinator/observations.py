"""What the coordinator says about itself: counters, gauges and log lines."""

import logging
from collections.abc import Callable

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from schemas import BatchLifecycleState, BatchRecord, ModelVersion
from trinity_bus.coordination import CoordinatorMachine, Fact
from trinity_bus.coordination.commands import Observe
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.metrics import TASK_RETRIES, TASKS

log = logging.getLogger("workers.coordinator")

_METER = metrics.get_meter("workers.coordinator")
FACTS = _METER.create_counter("rl.coordinator.facts", description="What the coordinator has noticed, by kind.")
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


def batch_moved(record: BatchRecord) -> None:
    """Logs where a batch stands."""
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
        return [Observation(len(machine().ledger.batches))]

    def explorers(_options: CallbackOptions) -> list[Observation]:
        # Metrics are collected on a thread of their own, while explorers may join.
        return [Observation(sum(1 for explorer in list(machine().fleet.explorers.values()) if not explorer.gone))]

    _METER.create_observable_gauge("rl.coordinator.tasks", [tasks], description="Open tasks, by state.")
    _METER.create_observable_gauge("rl.coordinator.batches", [batches], description="Open batches.")
    _METER.create_observable_gauge("rl.coordinator.explorers", [explorers], description="Live explorers.")
