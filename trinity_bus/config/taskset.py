"""The section ``taskset``: a dataset that is turned into tasks."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.record import Identifier
from trinity_bus.config.section import Section
from trinity_bus.config.values import Count, ExistingFile

type OrderName = Literal["sequential", "shuffled", "random", "easy_to_hard", "by_difficulty"]


class TasksetSettings(Section):
    """A task set, which turns a dataset into tasks. See docs/tasksets.md."""

    name: Identifier = "taskset-0"
    """Its identity across restarts, and the prefix of its task ids. Use another name for another dataset."""
    path: ExistingFile | None = None
    """Tasks to train on: a JSONL file, or a description in TOML of training and evaluation sets. See
    docs/tasksets.md."""
    order: OrderName = "shuffled"
    """Order of rows. ``sequential``, ``shuffled`` and ``easy_to_hard`` use each once an epoch, ``random`` chooses at
    random, and ``by_difficulty`` prefers rows of which some runs did well and some did not."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the order."""
    epochs: Count | None = None
    """How often each row is used. Unset: no end."""
    ahead: Count = 256
    """Tasks that are produced and not answered; use at least two batches."""
    eval_interval: Count = 10
    """Versions from one evaluation to the next."""
