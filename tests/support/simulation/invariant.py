"""What must hold in the mesh, and what of the truth it is held against."""

from dataclasses import dataclass, field
from enum import StrEnum

from schemas import ExperiencePiece

type AttemptName = tuple[str, int]  # task id and attempt
type CommandName = tuple[str, str]  # client and command id


class Invariant(StrEnum):
    ONE_RESULT = "every accepted task ends in exactly one TaskResult"
    REAL = "a result names only experiences that were produced, by attempts that counted"
    WHOLE = "a completed task has each of its runs exactly once"
    ONCE = "over all manifests, each task and each experience is named at most once"
    MANIFEST = "a manifest says of its batch's tasks what their results said, of each once, and counts them right"
    TRANSITIONS = "batches make only the steps of the lifecycle"
    SEQUENCE = "sequences of FINALIZED train batches are 1, 2, 3 ..."
    STALENESS = "no sample of a FINALIZED train batch that follows the trainer is staler than max_staleness"
    INFLIGHT = "at most max_inflight_batches train batches are handed out and not ended"
    SLOTS = "no explorer is handed more than it has slots for, as far as is known of it"
    DISPATCH = "orders go to live explorers of the pool that know the workflow and serve the version, for open tasks"
    ATTEMPTS = "attempts are numbered without gaps, none above its limit, at most two at once for the same runs"
    EPOCHS = "an epoch names one membership, never comes back, and its members live and follow the trainer"
    REPLIES = "every command gets one reply for each time it is sent at most, always the same"
    REPLY_IS_TRUE = "a reply agrees with what has become of its batch"
    SAME_RESULT = "all who finalize a batch get the same result, that of its record"
    RESTORE = "a restored machine is the one that was killed, and decides like it"
    LIVENESS = "once faults stop, everything ends in a bounded time"
    MEMORY = "what is kept does not grow with what has ended"


class InvariantViolatedError(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: Invariant, detail: str) -> None:
        super().__init__(f"{invariant.name} ({invariant}): {detail}")
        self.invariant = invariant


def hold(condition: object, invariant: Invariant, detail: str) -> None:
    if not condition:
        raise InvariantViolatedError(invariant, detail)


@dataclass(frozen=True, slots=True)
class Produced:
    """The truth about an attempt that gave experiences, or would have for an eval batch."""

    pieces: tuple[ExperiencePiece, ...]  # its records, in the order of its samples; none for an eval batch
    run_ids: tuple[int, ...]
    version_min: int
    fixed: bool = False  # whether it was drawn with a checkpoint that follows no trainer


@dataclass(slots=True)
class Told:
    """What the coordinator has been told of one incarnation of an explorer."""

    incarnation: str
    state: str
    slots: int
    version: int
    workflows: frozenset[str]
    pool: str | None
    fixed: bool
    outstanding: set[AttemptName] = field(default_factory=set)
