"""Where an explorer of a benchmark finds an announced version."""

from schemas import ModelVersion
from trinity_bus.weights.transport import Source


def source(announced: ModelVersion, explorer: str, timeout_s: float = 30.0) -> Source:
    """Return what a receiver needs.

    Args:
        announced: As the coordinator has announced it.
        explorer: Whose receiver.
        timeout_s: Limit of each step, in seconds.
    """
    return Source(
        method=announced.method,
        host=announced.master_address,
        port=announced.master_port,
        prefix=f"{announced.trainer_incarnation}/{announced.epoch}/{explorer}",
        version=announced.version,
        checksum=announced.checksum,
        secret=announced.secret or "",
        folder=announced.checkpoint or "",
        timeout_s=timeout_s,
    )
