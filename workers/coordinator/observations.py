"""Counters and log lines of what the coordinator does, and gauges of its state, which only the leader has."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from schemas import BatchLifecycleState, BatchRecord, BatchSkipped, ModelVersion, TaskResult
from trinity_bus import awake
from trinity_bus.coordination import CoordinatorMachine, Fact, staleness
from trinity_bus.coordination.batches.batch import Batch
from trinity_bus.coordination.dispatch.explorer import Explorer
from trinity_bus.coordination.effects import Observe
from trinity_bus.rollout.metrics import reward_of
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.metrics import BATCH_DURATION, SHORT_SECONDS, STALENESS, TASK_RETRIES, TASKS


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
