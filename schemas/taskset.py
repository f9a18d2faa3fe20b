"""Tasksets: how far a dataset has been turned into tasks, keyed by its name on a compacted topic.

Written in the transaction that produces the tasks, so a taskset that is killed goes on with the very next line.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.event import Position
from schemas.record import Count, Identifier, Record, VersionOrNone


class TasksetPosition(Record):
    """Where a taskset stands."""

    SCHEMA: ClassVar[str] = "taskset_position"

    taskset: Identifier
    fingerprint: Annotated[str, Field(min_length=1, max_length=128)]
    """Of the dataset and the seed: the order of lines that ``produced`` counts in."""
    produced: Count = 0
    """Train tasks produced so far, over all epochs."""
    ended: Count = 0
    """Of them: those with a result or a dead letter."""
    examined: VersionOrNone = -1
    """The newest model version for which eval tasks were produced; -1 for none."""
    results: Annotated[list[Position], Field(max_length=1024)] = Field(default_factory=list)
    """Where to read ``results`` on."""
    dead_letters: Annotated[list[Position], Field(max_length=1024)] = Field(default_factory=list)
    """Where to read ``dead-letters`` on."""
