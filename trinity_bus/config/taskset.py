"""The section ``taskset``: a dataset that is turned into tasks."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.record import Identifier
from trinity_bus.config.section import Section
from trinity_bus.config.values import Count, ExistingFile

type OrderName = Literal["sequential", "shuffled", "random", "easy_to_hard", "by_difficulty"]


class TasksetSettings(Section):
    """A dataset that is turned into tasks."""

    name: Identifier = "taskset-0"
    """Its identity over restarts, and the beginning of its task ids. Another dataset needs another name."""
    path: ExistingFile | None = None
    """Tasks to train on: a file of JSON lines, or a description in TOML of what to train on and what to evaluate
    versions with. See docs/tasksets.md."""
    order: OrderName = "shuffled"
    """In which order rows are used. ``sequential``, ``shuffled`` and ``easy_to_hard`` use each once an epoch,
    ``random`` draws, and ``by_difficulty`` draws those most often of which some runs did well and some did not."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the order."""
    epochs: Count | None = None
    """How often each line is used. Unset: without end."""
    ahead: Count = 256
    """Tasks produced and not yet answered; at least two batches keep everybody busy."""
    eval_interval: Count = 10
    """Versions from one evaluation to the next."""
