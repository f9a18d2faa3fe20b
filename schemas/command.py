"""Commands: what clients ask of the coordinator, as msgpack or JSON, keyed by their subject; and what it answers.

The *subject* is a batch, by its id; of ``PublishVersion`` and ``RollBack`` a model, by its name; of ``Contribute`` a
task; of ``FinalizeUpgrade`` the coordinator's state, by that of its topic.

Each command names its sender and carries an id of the sender's choice; its one ``CommandReply`` on ``replies`` is keyed
by the sender and repeats the id. A command that is sent twice under one id asks for the same thing once. A reply comes
when the command has been carried out, or cannot be: at once, for all but ``FinalizeBatch``, which may wait for the
batch.

::

    client                     coordinator
      |--SubmitBatch "b", 2 tasks-->|            batches: b PENDING
      |<------------reply: ok-------|
      |--Task 1, Task 2, for "b"--->|            batches: b RUNNING
      |--FinalizeBatch "b", 60 s--->|
      |                             |            batches: b FINALIZING, FINALIZED
      |<---reply: ok, with result---|
"""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, model_validator

from schemas.batch import BatchState
from schemas.event import ExperiencePiece
from schemas.experience import MAX_PIECES
from schemas.fields.free_form import MAX_ITEMS
from schemas.record import (
    MAX_REASON_CHARS,
    MAX_VERSION,
    BatchType,
    Count,
    Identifier,
    Metrics,
    Person,
    Positive,
    Record,
    Version,
    VersionOrNone,
)
from schemas.task import MAX_REPEAT_TIMES

MAX_WAIT_S = 7 * 86_400.0
STATE_TOPIC: Final = "coordinator-state"  # name of the topic that has the coordinator's state


class AnyCommand(Record):
    """What every command has."""

    SCHEMA: ClassVar[str] = "asked"
    JSON: ClassVar[bool] = True
    SUBJECT: ClassVar[str] = "model"  # the field that names what it is about

    client: Identifier  # who asks; the key of the reply
    command_id: Identifier  # chosen by the client, another one for each command

    @property
    def subject(self) -> str:
        # its key
        return str(getattr(self, self.SUBJECT))


class Command(AnyCommand):
    """What every command about a batch has."""

    SCHEMA: ClassVar[str] = "command"
    SENT_ON: ClassVar[bool] = True
    SUBJECT: ClassVar[str] = "batch_id"

    batch_id: Identifier
    # Whose batch it is, by the name that the tasks have too; that of ``client`` where absent. Who submits a batch, or
    # sends its first task, owns it; only its owner, or an operator, may end it before its time.
    producer: Identifier | None = None


class SubmitBatch(Command):
    """Register a batch. Its tasks follow on ``tasks``, each naming the batch, after the reply."""

    SCHEMA: ClassVar[str] = "command.submit_batch"

    batch_type: BatchType = "train"
    expected_task_count: Annotated[int, Field(ge=0, le=MAX_ITEMS)] | None = None
    """How many tasks it will have. Absent: it is *open*, see ``schemas.batch``."""
    min_wait_num: Positive | None = None
    """Finished tasks with which it may end, once the configured time for the others has passed too. Absent: the
    configured over-rollout decides for train batches; eval batches wait for all."""


class FinalizeBatch(Command):
    """Tell me when the batch is FINALIZED, or end it with what it has when my time is up."""

    SCHEMA: ClassVar[str] = "command.finalize_batch"

    batch_type: BatchType = "train"
    timeout_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S, allow_inf_nan=False)] | None = None
    """How long to wait. Absent: what all attempts at one task may take together."""


class AbortBatch(Command):
    """Give the batch up. Nothing happens, and that is a success, where it has ended or was never known."""

    SCHEMA: ClassVar[str] = "command.abort_batch"

    reason: Annotated[str, Field(min_length=1, max_length=MAX_REASON_CHARS)]
    keep_partial_results: bool = False
    """Whether its ABORTED record names the results that it has, those of unfinished tasks too. They are never trained
    on."""


class CancelTasks(Command):
    """End the unfinished tasks of a batch; the batch itself goes on with the results that it then has."""

    SCHEMA: ClassVar[str] = "command.cancel_tasks"

    reason: Annotated[str, Field(min_length=1, max_length=MAX_REASON_CHARS)]
    return_partial_tasks: bool = False
    """Whether a task of which some runs are done ends as ``partial`` rather than ``aborted``."""
    restart_runners: bool = False
    """Whether runners that are at it are stopped at once, rather than given the time to let go."""


class SkipBatch(Command):
    """Have the trainer pass over a FINALIZED train batch that it has not trained on: one that it cannot train on."""

    SCHEMA: ClassVar[str] = "command.skip_batch"

    reason: Annotated[str, Field(min_length=1, max_length=MAX_REASON_CHARS)]


class PublishVersion(AnyCommand):
    """Make every explorer serve this version, and no newer one until I say so; or the newest again."""

    SCHEMA: ClassVar[str] = "command.publish_version"

    model: Identifier
    version: Version | None = None
    """Absent: the newest, and from now on each that is published."""
    asked_by: Person | None = None


class RollBack(AnyCommand):
    """End a lineage that went wrong: train on from this version, serve it at once, discard what is newer.

    Batches that are FINALIZED by now, and that this version was not trained on, are passed over.
    """

    SCHEMA: ClassVar[str] = "command.roll_back"

    model: Identifier
    version: Version
    reason: Annotated[str, Field(min_length=1, max_length=MAX_REASON_CHARS)]
    asked_by: Person | None = None


class Contribute(AnyCommand):
    """Count these experiences as one task's, as if an explorer had answered it: they join the batch being filled.

    They lie on ``experiences`` by now, with ``explorer`` naming who contributes them: ``producer``, or else ``client``.
    """

    SCHEMA: ClassVar[str] = "command.contribute"
    SENT_ON: ClassVar[bool] = True
    SUBJECT: ClassVar[str] = "task_id"

    task_id: Identifier
    """Unlike that of every other task; the experiences have it too."""
    pieces: Annotated[list[ExperiencePiece], Field(min_length=1, max_length=MAX_PIECES)]
    """Their records, in the order of the samples; one, unless they are too large for one."""
    version_min: VersionOrNone
    version_max: VersionOrNone
    """Lowest and highest model version that drew any of the tokens."""
    producer: Identifier | None = None
    """Who contributes, by the name that tasks have too; that of ``client`` where absent."""
    covers: Annotated[list[Identifier], Field(max_length=MAX_REPEAT_TIMES)] | None = None
    """Other ids under which some of this could be contributed, each of at least one sample. They are known from then
    on; where one is known already, nothing of this is counted."""

    @model_validator(mode="after")
    def _covers_no_more_than_it_has(self) -> "Contribute":
        if len(self.covers or ()) > sum(piece.samples for piece in self.pieces):
            raise ValueError("covers has more ids than there are samples")
        return self


class FinalizeUpgrade(AnyCommand):
    """Write the coordinator's state as the present version does: no program of the version before reads it any more."""

    SCHEMA: ClassVar[str] = "command.finalize_upgrade"

    level: Annotated[int, Field(ge=1, le=MAX_VERSION)]
    """Of the state. A coordinator that does not know it refuses; nothing happens where the state has it, or a newer."""

    @property
    def subject(self) -> str:
        return STATE_TOPIC


class BatchResult(Record):
    """What a finished batch came to."""

    SCHEMA: ClassVar[str] = "batch_result"

    batch_id: Identifier
    batch_type: BatchType
    state: BatchState
    finished_task_count: Count
    """Tasks with a result, failed ones too; not those that were cut off."""
    metrics: Metrics = Field(default_factory=dict)
    sequence: Count = 0
    """Its place in the order of training; 0 where it has none."""


type CommandError = Literal[
    "unknown_batch",
    "already_active",
    "batch_closed",
    "not_finalized",
    "already_trained",
    "batch_too_large",
    "wrong_type",
    "open_batch",
    "timeout",
    "unknown_model",
    "unknown_version",
    "not_yours",
    "known_task",
    "too_stale",
    "beyond_the_log",
    "wrong_record",
    "over_limit",
    "invalid",
]


class CommandReply(Record):
    """The answer to one command."""

    SCHEMA: ClassVar[str] = "command_reply"

    client: Identifier
    command_id: Identifier
    batch_id: Identifier
    """What the command is about: a batch, a model, a task, or ``coordinator-state``."""
    error: CommandError | None = None
    """Absent: it was carried out."""
    detail: str = ""
    """The error in words."""
    result: BatchResult | None = None
    """Of a batch that has ended, in the answer to ``FinalizeBatch``."""
