"""What is written from the ledger's lines, each in its own way of telling how many it has.

===================  ==================================================================================================
what                 how many lines it has, and what becomes of a torn end
===================  ==================================================================================================
TensorBoard          an event for each line, all in one folder: events are counted when it is opened, each file up to
                     its first damaged record, which readers pass over; a new file takes the rest
Weights & Biases     a row for each line, numbered by it. Online a run is resumed, and its server says the last row.
                     Offline nobody can be asked: the folder of the run is written anew from the ledger
===================  ==================================================================================================

Their packages are imported when they are asked for.
"""

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trinity_bus.tracking.table import MetricsLine


class Sink(ABC):
    """Takes lines of the ledger, in order."""

    lines: int
    """How many it has."""

    @abstractmethod
    def write(self, lines: Sequence[MetricsLine]) -> None:
        """Take the next lines."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""


class TensorBoard(Sink):
    """Event files of a folder.

    Args:
        folder: Only this writes there.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self.lines = 0
        for file in sorted(folder.glob("events.out.tfevents.*")):
            # The first record of a file says of which version it is.
            records = (Event.FromString(raw) for raw in RawEventFileLoader(str(file)).Load())
            self.lines += sum(record.HasField("summary") for record in records)
        self._writer = EventFileWriter(str(folder), filename_suffix=f".{self.lines:012d}")

    def write(self, lines: Sequence[MetricsLine]) -> None:
        """See ``Sink``."""
        for line in lines:
            values = [self._summary.Value(tag=name, simple_value=value) for name, value in line.metrics.items()]
            self._writer.add_event(self._event(wall_time=line.at, step=line.step, summary=self._summary(value=values)))
        self._writer.flush()
        self.lines += len(lines)

    def close(self) -> None:
        """See ``Sink``."""
        self._writer.close()


class WeightsAndBiases(Sink):
    """A run of Weights & Biases; ``WANDB_MODE=offline`` keeps it in a folder, for ``wandb sync``.

    Args:
        folder: Only this writes there.
        project: That it belongs to.
        run: Its id, the same over restarts.
    """

    def __init__(self, folder: Path, project: str, run: str) -> None:
        import wandb

        offline = os.environ.get("WANDB_MODE") == "offline"
        if offline and folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(project=project, id=run, dir=str(folder), resume=None if offline else "allow")
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self.lines = 0 if offline else self._run.step

    def write(self, lines: Sequence[MetricsLine]) -> None:
        """See ``Sink``."""
        for line in lines:
            self._run.log({**line.metrics, "step": line.step, "at": line.at}, step=self.lines)
            self.lines += 1

    def close(self) -> None:
        """See ``Sink``."""
        self._run.finish()
