"""Steps: what the trainer is about to train on, and what it leaves out and why, written before the step begins.

The record is durable before the first weight changes. A step that is taken again, because its trainer died, reads it
and obeys it: what was left out stays left out, whatever the settings or the program say by then; so the choice is the
same bit for bit. Tools read it to train on the log once more, and to tell what a step was made of.

Keyed by trainer and step on a compacted topic, so the last record of a step is the one that counts; each stage of a
trainer writes under a name of its own, which has the stage's behind a slash. The last
``KEPT_STEPS`` are kept; older ones get a tombstone as new ones are written.

================================  ====================================================================================
killed ...                        and started again
================================  ====================================================================================
before the record is durable      nothing is known of the step: it is chosen anew, from the same log
after it, before the checkpoint   the record is there and binds; it is not written again
after the checkpoint              the step is not taken again; the record tells what it was made of
================================  ====================================================================================

================================  ====================================================================================
a record ...                      means
================================  ====================================================================================
twice for a step                  the last one counts: an operator has skipped the batch after the first was written,
                                  which is possible until the step is told of
of another incarnation            the same: an incarnation obeys those before it
of another run                    nothing: a run that begins without a checkpoint has a ``run`` of its own, and so has
                                  a trainer of the same name with another checkpoint directory
of another batch, or other parts  nothing, likewise; the step is chosen anew and its record replaces that one
missing, of a step in a           nothing: the checkpoint alone says how far training has come
checkpoint
missing, of a step to be taken    the topic was deleted: the step is chosen anew, and by other settings perhaps
again                             otherwise
that cannot be read               of a step to be taken, the trainer ends and says so: it may be the one to obey
of another trainer, or under      nothing
another key
================================  ====================================================================================

A trainer that publishes no versions, one of examples alone, a shadow or a replay, writes the figures of a step here as
well, under a key of their own behind the step's: of one that publishes versions ``StepTrained`` has them.
"""

from typing import Annotated, ClassVar

from msgspec import Meta
from pydantic import Field

from schemas.batch import MAX_BATCH_TASKS, ResultPart
from schemas.event import Position
from schemas.fields.free_form import MAX_ITEMS
from schemas.fields.items import Item, Name, Number
from schemas.record import MAX_REASON_CHARS, Count, Identifier, Metrics, Positive, Record, Seconds

KEPT_STEPS = 1000  # of each trainer, whose records are kept
MAX_WHY_CHARS = 500
_MAX_DIGITS = 19


class StepGroup(Item, frozen=True, kw_only=True):
    """The experiences of one task, as the batch's manifest names them."""

    task_id: Name
    parts: Annotated[list[ResultPart], Meta(min_length=1, max_length=MAX_ITEMS)]


class LeftOut(Item, frozen=True, kw_only=True):
    """Samples of a task that are not trained on, for one reason."""

    task_id: Name
    reason: Name  # one word, of ``schemas.groups.trainable.FlawKind`` or of the trainer's choice
    # their places in the task's group, all parts joined
    samples: Annotated[list[Number], Meta(min_length=1, max_length=MAX_ITEMS)]
    detail: Annotated[str, Meta(max_length=MAX_WHY_CHARS)] = ""  # what is wrong with the first of them


class StepBegun(Record):
    """A step is about to be trained."""

    SCHEMA: ClassVar[str] = "step_begun"
    MAX_BYTES: ClassVar[int] = 16 << 20

    trainer: Identifier
    incarnation: Identifier
    run: Identifier
    """Which run of the trainer: the same from its first step on, over restarts."""
    model: Identifier
    step: Positive
    """Which makes the version of the same number."""
    batch_id: Identifier
    """Where the step learns from examples alone, ``demonstrations-12`` or ``preferences-12`` for its number."""
    sequence: Positive
    """Of the batch; where there is none, the step."""
    next_offset: Count
    """In ``batches``, of what follows the batch; 0 where there is none."""
    seed: Count = 0
    """What the step's own random choices are derived from, together with its number."""
    groups: Annotated[list[StepGroup], Field(max_length=MAX_BATCH_TASKS)] = Field(default_factory=list)
    """In the order in which they are trained on."""
    left_out: Annotated[list[LeftOut], Field(max_length=MAX_ITEMS)] = Field(default_factory=list)
    replayed: Annotated[list[StepGroup], Field(max_length=MAX_BATCH_TASKS)] = Field(default_factory=list)
    """Of earlier batches, trained on once more."""
    demonstrations: Annotated[list[Position], Field(max_length=MAX_ITEMS)] = Field(default_factory=list)
    """Trained on beside them, or alone, by their places in ``demonstrations``."""
    preferences: Annotated[list[Position], Field(max_length=MAX_ITEMS)] = Field(default_factory=list)
    """Trained on alone, by their places in ``preferences``."""
    examples: Count = 0
    """How many demonstrations or preferences there were to choose from: the first ones on the log."""
    skipped: Annotated[str, Field(max_length=MAX_REASON_CHARS)] | None = None
    """Why the batch is passed over, where it is: the step changes nothing."""
    follows: Identifier | None = None
    """The trainer whose step is trained once more, by a shadow or a replay. Absent: the step is the run's own."""


class StepEnded(Record):
    """A step is trained, by a trainer that publishes no versions."""

    SCHEMA: ClassVar[str] = "step_ended"

    trainer: Identifier
    incarnation: Identifier
    run: Identifier
    model: Identifier
    step: Positive
    batch_id: Identifier
    """As the step's ``StepBegun`` says, like all of the above."""
    follows: Identifier | None = None
    """The same."""
    metrics: Metrics = Field(default_factory=dict)
    seconds: Seconds = 0.0


def step_key(trainer: str, step: int) -> str:
    return f"{trainer}/{step}"


def ended_key(trainer: str, step: int) -> str:
    return f"{step_key(trainer, step)}/ended"


def step_of_key(key: str | None, trainer: str) -> int | None:
    """Return the step of a trainer whose ``StepBegun`` has this key; None where it is no such key."""
    name, _, number = (key or "").rpartition("/")
    known = name == trainer and number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS
    return int(number) if known else None
