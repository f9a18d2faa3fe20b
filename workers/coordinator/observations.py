"""What the coordinator says of what it does: counters and log lines. Gauges of its state are in ``gauges``."""

import logging

from opentelemetry import metrics

from schemas import BatchLifecycleState, BatchRecord, BatchSkipped, ModelVersion, TaskResult
from trinity_bus.coordination import Fact, staleness
from trinity_bus.coordination.effects import Observe
from trinity_bus.rollout.metrics import reward_of
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.metrics import SHORT_SECONDS, STALENESS, TASK_RETRIES, TASKS
from workers.coordinator.gauges import BATCH_AGES

log = logging.getLogger("workers.coordinator")

_METER = metrics.get_meter("workers.coordinator")
FACTS = _METER.create_counter("rl.coordinator.facts", description="What the coordinator has noticed, by kind.")
REWARD = _METER.create_gauge("rl.batch.reward", description="Mean reward of the last batch of a kind, by evaluation.")
BATCHES = _METER.create_counter("rl.batches", unit="{batch}", description="Batches ended, by state.")
REFUSED = _METER.create_counter(
    "rl.contributions.refused", unit="{contribution}", description="Contributions that do not count, by reason."
)
BUDGET_USED = _METER.create_gauge(
    "trinity.topic.budget_used",
    unit="1",
    description="Share of its budget of bytes that is unread or untrained, of the fullest partition, by topic.",
)
LATENCY = _METER.create_histogram(
    "rl.coordinator.transaction.duration",
    unit="s",
    description="From records read to decisions committed.",
    explicit_bucket_boundaries_advisory=SHORT_SECONDS,
)

_LEVELS = {
    Fact.EXPLORER_JOINED: logging.INFO,
    Fact.EXPLORER_LEFT: logging.INFO,
    Fact.ATTEMPT_FAILED: logging.WARNING,
    Fact.EXPLORER_LOST: logging.WARNING,
    Fact.ATTEMPT_TIMED_OUT: logging.WARNING,
    Fact.TASK_FAILED: logging.ERROR,
    Fact.SYNC_FAILED: logging.WARNING,
    Fact.ZOMBIE_EXPLORER: logging.WARNING,
    Fact.ZOMBIE_TRAINER: logging.WARNING,
    Fact.LOST_VERSION: logging.WARNING,
    Fact.CONTRIBUTION_REFUSED: logging.INFO,
    Fact.ROLLED_BACK: logging.WARNING,
    Fact.STARVED: logging.WARNING,
}  # all others are counted, and logged for those who look closely


def begin() -> None:
    """Counters that exist from the start: one that begins with what it counts first has not risen, to a collector."""
    for fact in Fact:
        FACTS.add(0, {names.RL_FACT: fact.value})
    for status in ("completed", "partial", "failed", "aborted"):
        TASKS.add(0, {names.RL_TASK_STATUS: status, names.RL_BATCH_TYPE: "train"})
    TASK_RETRIES.add(0)


def observe(observed: Observe) -> None:
    FACTS.add(1, {names.RL_FACT: observed.fact.value})
    if observed.fact is Fact.CONTRIBUTION_REFUSED:
        REFUSED.add(1, {names.RL_REASON: observed.detail.partition(":")[0]})
    if observed.fact is Fact.TASK_RETRIED:
        TASK_RETRIES.add(1)
    level = _LEVELS.get(observed.fact, logging.DEBUG)
    if log.isEnabledFor(level):
        log.log(level, "%s: %s: %s", observed.fact.value.replace("_", " "), observed.subject, observed.detail)


def written(record: object) -> None:
    match record:
        case TaskResult():
            TASKS.add(1, {names.RL_TASK_STATUS: record.status, names.RL_BATCH_TYPE: record.batch_type})
        case BatchRecord():
            _batch_moved(record)
        case BatchSkipped():
            log.warning("batch %s is to be passed over: %s", record.batch_id, record.reason)
        case ModelVersion():
            members = ", ".join(member.explorer for member in record.members) or "no explorer yet"
            log.info("announced version %d, epoch %d, for %s", record.version, record.epoch, members)


def _batch_moved(record: BatchRecord) -> None:
    BATCH_AGES.moved(record)
    if record.state in (BatchLifecycleState.FINALIZED, BatchLifecycleState.ABORTED):
        BATCHES.add(1, {names.RL_BATCH_STATE: record.state.value, names.RL_BATCH_TYPE: record.batch_type})
    if record.state is BatchLifecycleState.FINALIZED:
        if (reward := reward_of(record.metrics)) is not None:
            eval_name = record.batch_id.partition("/")[2] if record.batch_type == "eval" else ""
            REWARD.set(reward, {names.RL_BATCH_TYPE: record.batch_type, names.RL_EVAL: eval_name})
        if record.batch_type == "train":
            for entry in record.manifest:
                if entry.parts and entry.version_min >= 0:
                    STALENESS.record(staleness(record.sequence, entry.version_min))
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
