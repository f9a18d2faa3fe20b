"""What is remembered of a version for good. Pure."""

from schemas import PublishedVersion, StepTrained
from trinity_bus.coordination.limits import bounded


def entry(step: StepTrained) -> PublishedVersion:
    """Return the record for ``version-history``."""
    return PublishedVersion(
        model=step.model,
        version=step.version,
        step=step.step,
        batch_id=step.batch_id,
        method=step.method,
        trainer=step.trainer,
        writer=step.writer,
        trainer_incarnation=step.incarnation,
        checksum=step.checksum,
        checkpoint=step.checkpoint,
        metrics=bounded(step.metrics),
        seconds=step.seconds,
        skipped=step.skipped,
        rollback=step.rollback,
        source=step.source,
    )


def key(record: PublishedVersion) -> str:
    """Return a record's key: one record for each version of each model."""
    return f"{record.model}/{record.version}"
