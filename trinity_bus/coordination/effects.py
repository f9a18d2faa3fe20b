"""What the coordinator's state machine decides: records to write, tasks to refuse, and things worth a log line.

Effects of one call are carried out together with the changelog and the input offsets, in one transaction, or not at
all.
"""

from enum import StrEnum

from msgspec import Struct

from schemas import BatchRecord, Record, Superseded, Task, VersionWanted
from schemas.topic import Topic
from schemas.topics import BATCHES, COORDINATOR_EVENTS, ROLLOUTS
from trinity_bus.coordination.inputs import Origin


class Write(Struct, frozen=True):
    topic: Topic
    key: str
    record: Record
    # Of the task, the command, the trainer's publication or the rollout that counts.
    traceparent: str | None = None
    lane: int | None = None  # of ``rollouts``, as the explorer has told


class RejectionReason(StrEnum):
    """Why a well-formed task is not run. Stands in the headers of its dead letter."""

    DUPLICATE_TASK = "duplicate_task"
    UNKNOWN_WORKFLOW = "unknown_workflow"
    BATCH_MISMATCH = "batch_mismatch"
    BATCH_FULL = "batch_full"
    BATCH_TOO_LARGE = "batch_too_large"
    BATCH_CLOSED = "batch_closed"
    OVER_LIMIT = "over_limit"
    OVER_QUOTA = "over_quota"


class RejectTask(Struct, frozen=True):
    task: Task
    origin: Origin
    refusal: RejectionReason
    detail: str
    traceparent: str | None


class Fact(StrEnum):
    """Things that are counted and logged; the first group is normal, the second is ignored input, the third is bad."""

    EXPLORER_JOINED = "explorer_joined"
    EXPLORER_LEFT = "explorer_left"
    ATTEMPT_FAILED = "attempt_failed"
    TASK_RETRIED = "task_retried"
    TASK_ABORTED = "task_aborted"
    SPECULATIVE_ATTEMPT = "speculative_attempt"
    ROLLED_BACK = "rolled_back"

    LATE_RESULT = "late_result"
    ZOMBIE_EXPLORER = "zombie_explorer"
    ZOMBIE_TRAINER = "zombie_trainer"
    LATE_VERSION = "late_version"
    LATE_SYNC = "late_sync"
    LOST_VERSION = "lost_version"
    OTHER_MODEL = "other_model"
    CONTRIBUTION_REFUSED = "contribution_refused"

    EXPLORER_LOST = "explorer_lost"
    ATTEMPT_TIMED_OUT = "attempt_timed_out"
    TASK_FAILED = "task_failed"
    SYNC_FAILED = "sync_failed"
    STARVED = "starved"


class Observe(Struct, frozen=True):
    """To the counters and the log; nothing depends on it."""

    fact: Fact
    subject: str  # name of the task, the explorer or the trainer
    detail: str = ""


type Effect = Write | RejectTask | Observe


class Effects:
    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def add(self, effect: Effect) -> None:
        self._effects.append(effect)

    def publish_batch(self, record: BatchRecord) -> None:
        self._effects.append(Write(BATCHES, record.batch_id, record))

    def request_version(self, record: VersionWanted | None) -> None:
        if record is not None:
            self._effects.append(Write(COORDINATOR_EVENTS, record.model, record))

    def observe(self, fact: Fact, subject: str, detail: str) -> None:
        self._effects.append(Observe(fact, subject, detail))

    def dismiss(self, superseded: Superseded, lane: int | None = None) -> None:
        is_explorer = superseded.service == "explorer"
        fact, topic = (Fact.ZOMBIE_EXPLORER, ROLLOUTS) if is_explorer else (Fact.ZOMBIE_TRAINER, COORDINATOR_EVENTS)
        detail = f"incarnation {superseded.incarnation} speaks, but incarnation {superseded.by} has begun since"
        self.observe(fact, superseded.name, f"{detail}: are there two of this name?")
        self.add(Write(topic, superseded.name, superseded, lane=lane))

    def take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
