"""Rollouts: the coordinator's orders to one explorer, keyed by its name, in its lane: the partition that it reads.

Order within a lane is the order of the log. An explorer carries out only orders to its own incarnation: an order to an
earlier incarnation of the same name is void, because the coordinator has handed that work out again.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.event import Pause, Position
from schemas.record import MAX_SECONDS, BatchType, Count, Identifier, Positive, Record, Version
from schemas.task import MAX_REPEAT_TIMES, Task


class Dispatch(Record):
    """Run this task now. Answered by exactly one ``RolloutFinished`` of the same task and attempt."""

    SCHEMA: ClassVar[str] = "rollout.dispatch"
    MAX_BYTES: ClassVar[int] = Task.MAX_BYTES + (64 << 10)
    CARRIES: ClassVar[bool] = True

    explorer: Identifier
    incarnation: Identifier
    task: Task
    attempt: Positive
    """Numbers every order to run this task, also where it was split or is run twice at once: no two have the same."""
    batch_id: Identifier
    batch_type: BatchType
    repeat_times: Annotated[int, Field(ge=1, le=MAX_REPEAT_TIMES)]
    """How many of the task's runs to do."""
    run_id_base: Count = 0
    """The first of them; above 0 where the task was split."""
    min_version: Version = 0
    """The explorer must hold at least this model version when the rollout starts."""
    timeout_s: Annotated[float, Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)]
    turns: Position | None = None
    """From where on earlier attempts have completed turns of this task, in ``turns``. Absent: none that is known."""
    discarded: Count = 0
    """Of attempts up to this number nothing is gone on with: a rollback has discarded the versions that drew it."""


class Cancel(Record):
    """Stop this attempt; whatever it produces from now on does not count."""

    SCHEMA: ClassVar[str] = "rollout.cancel"

    explorer: Identifier
    incarnation: Identifier
    task_id: Identifier
    attempt: Positive
    reason: str
    restart_runner: bool = False
    """Whether a runner that is at it is stopped at once, rather than given the time to let go."""


class SetPace(Record):
    """Send heartbeats that tell nothing new no more often than this: so many explorers are there."""

    SCHEMA: ClassVar[str] = "rollout.set_pace"

    explorer: Identifier
    incarnation: Identifier
    pace_s: Pause
    """0: as often as its own settings say."""
