"""The coordinator's figures, for its heartbeat."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    """Named as in ``CoordinatorHeartbeat``."""

    open_batches: int
    open_tasks: int
    running_attempts: int
    max_timeout_s: float
    attempts_per_task: int
    dynamic_timeout_s: float
