"""The metrics that the mesh keeps, created once and shared.

They are OpenTelemetry instruments: without a configured meter provider, adding to one does nothing. Messaging names
follow OpenTelemetry's conventions; ``rl.`` and ``trinity.`` names are this project's own.

``Occupancy`` is where the time of a number of like units goes: the slots of an explorer, the engine of a trainer.

::

    IDLE --unit("training")--> TRAINING --move("publishing")--> PUBLISHING --the block ends--> IDLE

Each unit is in one state at a time, and the seconds that each state has been occupied are summed up: ten slots that are
idle for a second are ten seconds. As an ever rising counter this loses nothing between two readings, where a gauge that
is read every few seconds would show one moment of them; the rate of a state over the rate of all is its share.
"""

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from trinity_bus.telemetry import conventions as names


class Occupancy:
    """Seconds by state.

    Args:
        idle: The state of a unit that does nothing.
        units: How many there are. More may be busy for a moment; then none is idle.
        clock: Seconds, steady.
    """

    def __init__(self, idle: str, units: int = 1, clock: Callable[[], float] = time.perf_counter) -> None:
        self._idle = idle
        self._clock = clock
        self._busy: dict[str, int] = {}
        self._idle_units = units  # negative where more are busy than there are
        self._seconds: dict[str, float] = {idle: 0.0}
        self._at = clock()
        self._lock = threading.Lock()

    @contextmanager
    def unit(self, state: str) -> Iterator["Unit"]:
        """Count one unit as in ``state``, until the block ends or moves it to another."""
        unit = Unit(self)
        unit.move(state)
        try:
            yield unit
        finally:
            self._change(unit.state, None)

    def seconds(self) -> Mapping[str, float]:
        # In seconds of units.
        with self._lock:
            self._count()
            return dict(self._seconds)

    def _change(self, before: str | None, after: str | None) -> None:
        with self._lock:
            self._count()
            if before is None:
                self._idle_units -= 1
            else:
                self._busy[before] -= 1
            if after is None:
                self._idle_units += 1
            else:
                self._busy[after] = self._busy.get(after, 0) + 1

    def _count(self) -> None:
        now = self._clock()
        elapsed, self._at = now - self._at, now
        if self._idle_units > 0:
            self._seconds[self._idle] += elapsed * self._idle_units
        for state, units in self._busy.items():
            if units:
                self._seconds[state] = self._seconds.get(state, 0.0) + elapsed * units


class Unit:
    """A unit that does something. Made by :meth:`Occupancy.unit`."""

    __slots__ = ("_of", "state")

    def __init__(self, of: Occupancy) -> None:
        self._of = of
        self.state: str | None = None

    def move(self, state: str) -> None:
        self._of._change(self.state, state)  # noqa: SLF001 - its other half
        self.state = state


_METER = metrics.get_meter("trinity_bus")
# Buckets of what takes from a moment to an hour. OpenTelemetry's own are made for milliseconds.
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500)
# buckets of what others wait for
SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Totals[T]:
    """What all objects that are watched, and still exist, have by name; for an instrument that is observed."""

    def __init__(self, values: Callable[[T], Mapping[str, float]], attributes: Callable[[str], dict[str, str]]) -> None:
        self._values = values
        self._attributes = attributes
        self._watched: weakref.WeakSet[T] = weakref.WeakSet()

    def watch(self, one: T) -> None:
        """Count it in as long as it exists."""
        self._watched.add(one)

    def observe(self, _options: CallbackOptions) -> Iterable[Observation]:
        total: Counter[str] = Counter()
        # Metrics are collected on a thread of their own, while others come and go.
        for one in list(self._watched):
            total.update(self._values(one))
        return [Observation(value, self._attributes(name)) for name, value in total.items()]


def of_topic(topic: str) -> dict[str, str]:
    # The attributes of a metric of a topic, by its name without its namespace.
    return {names.MESSAGING_SYSTEM: "kafka", names.MESSAGING_DESTINATION_TEMPLATE: topic}


def _seconds_by_state(name: str, attribute: str, description: str) -> Totals[Occupancy]:
    totals = Totals(Occupancy.seconds, lambda state: {attribute: state})
    _METER.create_observable_counter(name, [totals.observe], unit="s", description=description)
    return totals


SENT_MESSAGES = _METER.create_counter(
    "messaging.client.sent.messages", "{message}", "Records sent; with an error.type, those that are not durable."
)
CONSUMED_MESSAGES = _METER.create_counter("messaging.client.consumed.messages", "{message}", "Records read.")
SEND_DURATION = _METER.create_histogram(
    "messaging.client.operation.duration",
    "s",
    "From send to durable, or to the error.",
    explicit_bucket_boundaries_advisory=(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
)
DEAD_LETTERS = _METER.create_counter("trinity.dead_letters", "{message}", "Records that could not be taken, by reason.")
RECORDS_LOST = _METER.create_counter(
    "trinity.records.lost", "{message}", "Records that were deleted before whoever needed them had read them."
)
TASKS = _METER.create_counter("rl.tasks", "{task}", "Tasks ended, by status.")
TASK_RETRIES = _METER.create_counter(
    "rl.task.retries", "{attempt}", "Attempts that failed or ran out of time and are made again."
)
ATTEMPTS = _METER.create_counter(
    "rl.attempts", "{attempt}", "Attempts ended at explorers, by status and by kind of error."
)
RUNNER_DEATHS = _METER.create_counter(
    "rl.explorer.runner.deaths", "{runner}", "Runners that ended without being told to, or were killed."
)
SLOT_TIME = _seconds_by_state(
    "rl.explorer.slot.time", names.RL_SLOT_STATE, "What slots of explorers spend their time with."
)
SLOTS_OFFERED = _METER.create_gauge(
    "rl.explorer.slots", "{slot}", "Attempts that an explorer asks for at once, by its engine's room."
)
TRAINER_TIME = _seconds_by_state("rl.trainer.time", names.RL_TRAINER_STATE, "What the trainer spends its time with.")
TOKENS = _METER.create_counter("rl.tokens", "{token}", "Tokens of rollouts, by kind.")
ROLLOUT_DURATION = _METER.create_histogram(
    "rl.rollout.duration", "s", "Of one attempt at a task.", explicit_bucket_boundaries_advisory=SECONDS
)
TRAIN_STEP_DURATION = _METER.create_histogram(
    "rl.train.step.duration",
    "s",
    "Of one train step, from its manifest to its new weights.",
    explicit_bucket_boundaries_advisory=SECONDS,
)
# what a train step reports, by the name that it has there
TRAIN = {
    name: _METER.create_gauge(f"rl.train.{name}", unit=unit, description=description)
    for name, unit, description in (
        ("step", "{step}", "Steps trained."),
        ("version", "{version}", "The newest model version."),
        ("loss", "", "Of the last step, mean over its tokens and updates; so are the next five."),
        ("policy_loss", "", "The loss without entropy bonus and KL penalty."),
        ("entropy", "nat", "Of the policy."),
        ("kl", "nat", "Estimate of the KL divergence from the reference model."),
        ("mismatch_k3", "nat", "Estimate of the KL divergence of the trained policy from what the engines drew with."),
        ("clip_fraction", "1", "Share of tokens whose gradient was clipped away."),
        ("grad_norm", "", "Before clipping, mean over updates."),
        ("learning_rate", "", "Of the last step."),
        ("reward_mean", "", "Over the samples of the last step."),
        ("reward_std", "", "Over the samples of the last step."),
        ("groups_skipped", "{group}", "Groups of the last step that teach nothing, all their rewards being equal."),
        ("samples_left_out", "{sample}", "Samples of the last step that no model could be trained on."),
        ("trained_tokens", "{token}", "Tokens of the last step that gradients came from."),
        ("tokens_without_kept", "{token}", "Others that were drawn from too many kept tokens, or nobody knows which."),
    )
}
SAMPLES_LEFT_OUT = _METER.create_counter(
    "rl.trainer.samples_left_out", "{sample}", "Samples that no model could be trained on, by flaw."
)
TOKEN_FIGURES_DROPPED = _METER.create_counter(
    "rl.trainer.token_figures_dropped",
    "{message}",
    "Records of figures by token that were not written, because the brokers did not keep up.",
)
STALENESS = _METER.create_histogram(
    "rl.staleness",
    "{version}",
    "Versions between the oldest token of a task's samples and the step that trains on them.",
    explicit_bucket_boundaries_advisory=(0, 1, 2, 3, 4, 6, 8, 12, 16, 32),
)
BATCH_DURATION = _METER.create_histogram(
    "rl.batch.duration",
    "s",
    "Of a batch in each state that it has left, by state.",
    explicit_bucket_boundaries_advisory=SECONDS,
)
WEIGHT_SYNC_PAUSE = _METER.create_histogram(
    "rl.weight_sync.pause",
    "s",
    "How long generation stood still.",
    explicit_bucket_boundaries_advisory=(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
)
WEIGHT_SYNC_DURATION = _METER.create_histogram(
    "rl.weight_sync.duration",
    "s",
    "From announcement to serving the version.",
    explicit_bucket_boundaries_advisory=SECONDS,
)


_OPERATION_TYPES = {"send": "send", "poll": "receive"}


@cache
def messaging(operation: str, topic: str, error_type: str | None = None) -> dict[str, str]:
    """Return the attributes of a metric of ``"send"`` or ``"poll"``, with the topic's name without its namespace."""
    return {
        **of_topic(topic),
        names.MESSAGING_OPERATION_NAME: operation,
        names.MESSAGING_OPERATION_TYPE: _OPERATION_TYPES[operation],
        **({} if error_type is None else {names.ERROR_TYPE: error_type}),
    }
