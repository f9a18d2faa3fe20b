"""What the trainer tells of a step: gauges for dashboards."""

from schemas import StepBegun
from schemas.record import Metrics
from trinity_bus.telemetry import conventions as names
from trinity_bus.telemetry.metrics import SAMPLES_LEFT_OUT, TRAIN, TRAIN_STEP_DURATION
from trinity_bus.training import choice
from trinity_bus.training.choice import LEFT_OUT, REASONS


def of_record(begun: StepBegun) -> Metrics:
    """Return the metrics of a step that its record knows, and the engine does not."""
    replayed = {"groups_replayed": float(len(begun.replayed))} if begun.replayed else {}
    return {**choice.counts(begun.left_out), **replayed}


def step_trained(model: str, *, step: int, version: int, seconds: float, metrics: Metrics) -> None:
    """Show a step's metrics until the next; ``seconds`` from the manifest to the new weights."""
    attributes = {names.RL_MODEL: model}
    TRAIN_STEP_DURATION.record(seconds, attributes)
    for reason in REASONS:
        # From the first step, or to a collector the first one would be no rise.
        SAMPLES_LEFT_OUT.add(int(metrics.get(f"{LEFT_OUT}/{reason}", 0.0)), {**attributes, names.RL_FLAW: reason})
    values = {**metrics, "step": float(step), "version": float(version)}
    for name, gauge in TRAIN.items():
        if name in values:
            gauge.set(values[name], attributes)
