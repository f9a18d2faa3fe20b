"""The section ``taskset``: a dataset that is turned into tasks."""

from typing import Annotated

from pydantic import Field

from schemas.record import Identifier
from trinity_bus.config.section import Section
from trinity_bus.config.values import Count, ExistingFile


class TasksetSettings(Section):
    """A dataset that is turned into tasks."""

    name: Identifier = "taskset-0"
    """Its identity over restarts, and the beginning of its task ids. Another dataset needs another name."""
    path: ExistingFile | None = None
    """Tasks to train on: a file of JSON lines."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the order in each epoch."""
    epochs: Count | None = None
    """How often each line is used. Unset: without end."""
    ahead: Count = 256
    """Tasks produced and not yet answered; at least two batches keep everybody busy."""
    eval_path: ExistingFile | None = None
    """Tasks to examine model versions with: a file of JSON lines. Unset: they are not examined."""
    eval_name: Identifier = "held-out"
    """What the evaluation is called in batch ids and metrics."""
    eval_interval: Count = 10
    """Versions from one evaluation to the next."""
    eval_repeat_times: Count = 1
    """Runs of each evaluation task that names no number."""
    eval_temperature: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Of evaluation tasks that name none."""
