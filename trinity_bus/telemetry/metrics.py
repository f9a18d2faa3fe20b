"""The metrics that the mesh keeps, created once and shared.

They are OpenTelemetry instruments: without a configured meter provider, adding to one does nothing. Messaging names
follow OpenTelemetry's conventions; ``rl.`` and ``trinity.`` names are this project's own.
"""

from opentelemetry import metrics

_METER = metrics.get_meter("trinity_bus")

SENT_MESSAGES = _METER.create_counter(
    "messaging.client.sent.messages", unit="{message}", description="Records handed to the producer."
)
CONSUMED_MESSAGES = _METER.create_counter(
    "messaging.client.consumed.messages", unit="{message}", description="Records read."
)
SEND_DURATION = _METER.create_histogram(
    "messaging.client.operation.duration", unit="s", description="From send to durable."
)
DEAD_LETTERS = _METER.create_counter(
    "trinity.dead_letters", unit="{message}", description="Records that could not be taken, by reason."
)
TASKS = _METER.create_counter("rl.tasks", unit="{task}", description="Tasks ended, by status.")
TASK_RETRIES = _METER.create_counter("rl.task.retries", unit="{attempt}", description="Attempts beyond a task's first.")
TOKENS = _METER.create_counter("rl.tokens", unit="{token}", description="Tokens of rollouts, by kind.")
ROLLOUT_DURATION = _METER.create_histogram("rl.rollout.duration", unit="s", description="Of one attempt at a task.")
TRAIN_STEP_DURATION = _METER.create_histogram("rl.train.step.duration", unit="s", description="Of one train step.")
WEIGHT_SYNC_DURATION = _METER.create_histogram(
    "rl.weight_sync.duration", unit="s", description="From announcement to serving the version."
)
