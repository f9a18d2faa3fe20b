"""Model versions: which weights the mesh is to serve, and who takes part in moving them.

Written by the coordinator alone, keyed by model name on a compacted topic, so the last record is the present. A weight
sync *group* is the trainer and the members named here; every change of membership is a new *epoch*. Version 0 is the
model as it was before training; version n is the model after step n.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.record import Identifier, Metrics, Record


class Member(Record):
    """An explorer's life that takes part in a transfer."""

    SCHEMA: ClassVar[str] = "member"

    explorer: Identifier
    incarnation: Identifier
    rank: Annotated[int, Field(ge=1)]
    """Its rank in the group of this epoch; the trainer is rank 0."""


class ModelVersion(Record):
    """A version to be served. Explorers named in ``members`` take it from the trainer; nobody else moves."""

    SCHEMA: ClassVar[str] = "model_version"

    model: Identifier
    version: Annotated[int, Field(ge=0)]
    step: int
    method: Literal["nccl", "gloo", "memory", "checkpoint"]
    epoch: Annotated[int, Field(ge=0)]
    members: list[Member] = Field(default_factory=list)
    trainer: Identifier
    trainer_incarnation: Identifier
    master_address: str
    master_port: int
    checksum: str
    checkpoint: str | None = None
    metrics: Metrics = Field(default_factory=dict)
    """Of the step that made it."""
