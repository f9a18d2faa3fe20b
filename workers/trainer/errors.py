import shlex
from pathlib import Path

from trinity_bus.errors import TrinityError
from trinity_bus.training.errors import TrainingError


class BatchError(TrinityError):
    """A batch cannot be trained on as its manifest says. To skip it is for an operator to say."""


class LineageEndedError(TrinityError):
    """An operator has ended the lineage of this incarnation: a new one begins, from an older version."""


def way_out(batch_id: str) -> str:
    """Return what an operator can do about a batch that cannot be trained on, as the end of a message."""
    return f"`trinity-bus batches skip {shlex.quote(str(batch_id))} --reason ...` has the trainer pass over it"


def diverged(skipped: int, step: int, directory: Path) -> TrainingError:
    return TrainingError(
        f"{skipped} updates in a row, the last in step {step}, were skipped because their loss or gradients were not "
        f"finite; the state is saved in {directory}: lower TRINITY_BUS_TRAINER__LEARNING_RATE, or look for broken "
        "log-probabilities"
    )
