"""Model versions: which weights the mesh is to serve, and who takes part in moving them.

Written by the coordinator alone, keyed by model name on a compacted topic, so the last record is the present. A weight
sync *group* is the trainer and the members named here; every change of membership is a new *epoch*. Version 0 is the
model as it was before training; version n is the model after step n.

What is forgotten there when the next version comes stands on ``version-history``: one record for each version that was
ever published, kept for ever.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.record import Count, Identifier, Metrics, Person, Port, Record, Rollback, Seconds, SkippedBatches, Version

MAX_MEMBERS = 1024  # explorers of one round: more take the version in the next one


class Member(Record):
    """An explorer's incarnation that takes part in a transfer."""

    SCHEMA: ClassVar[str] = "member"

    explorer: Identifier
    incarnation: Identifier
    rank: Annotated[int, Field(ge=1, le=MAX_MEMBERS)]
    """Its rank in the group of this epoch; the trainer is rank 0."""


class ModelVersion(Record):
    """A version to be served. ``members`` take it, from the trainer or from one that has it; nobody else moves."""

    SCHEMA: ClassVar[str] = "model_version"

    model: Identifier
    version: Version
    step: Version
    method: Literal["nccl", "gloo", "memory", "checkpoint", "object"]
    epoch: Count
    members: Annotated[list[Member], Field(max_length=MAX_MEMBERS)] = Field(default_factory=list)
    trainer: Identifier
    trainer_incarnation: Identifier
    master_address: str
    """Where the trainer is; with ``object`` the URL under which its versions are."""
    master_port: Port
    checksum: str
    checkpoint: str | None = None
    metrics: Metrics = Field(default_factory=dict)
    """Of the step that made it."""
    pinned: bool = False
    """Somebody has chosen this version; newer ones are not served until that is taken back."""
    secret: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(default=None, repr=False)
    """32 random bytes, hex, of this announcement alone. Members and trainer prove to each other that they know it,
    before either says anything else; so whoever may read this record may take the weights."""
    asked_by: Person | None = None
    """Who asked that it be pinned; of a version that is not pinned, that the newest be served again, or that training
    go back to it. Absent: nobody has, since the version before, or they gave no name."""
    dtype: Annotated[str, Field(max_length=32)] | None = None
    """As its ``StepTrained`` says."""
    source: Annotated[str, Field(max_length=256)] | None = None
    """Likewise."""


class PublishedVersion(Record):
    """A version that was published: what is worth knowing of it for good. Its time is that of the record."""

    SCHEMA: ClassVar[str] = "published_version"

    model: Identifier
    version: Version
    step: Version
    batch_id: Identifier | None = None
    """The batch that was trained on last; absent for a version that a trainer's incarnation began with."""
    method: Literal["nccl", "gloo", "memory", "checkpoint", "object"]
    trainer: Identifier
    writer: Identifier | None = None
    """As its ``StepTrained`` says."""
    trainer_incarnation: Identifier
    checksum: str
    checkpoint: str | None = None
    """Folder of its checkpoint, where it was kept at that time."""
    metrics: Metrics = Field(default_factory=dict)
    """Of the step that made it."""
    seconds: Seconds = 0.0
    """How long that step took."""
    skipped: SkippedBatches = Field(default_factory=list)
    """Batches that were passed over on the way to this version, the last ones."""
    rollback: Rollback | None = None
    """The last one in its lineage."""
    source: Annotated[str, Field(max_length=256)] | None = None
    """As its ``StepTrained`` says."""
