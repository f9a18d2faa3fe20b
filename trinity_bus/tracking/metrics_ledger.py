"""The ledger: a file of JSON lines, one for each record with metrics, and the place in the log that follows from it.

::

    open --no such file--> the first line says of which log it is
      |---of another log, or of other topics--> MetricsLedgerError: another folder is needed
      |---a line that was not finished (killed while it was written)--> cut off
      '---another tracker has it open--> MetricsLedgerError
    append: whole lines, on the disk before anything is written from them

Where reading goes on is behind the last line of each partition: there is no second file that could disagree. Records
without metrics behind it are read once more, and tell nothing again.

These records have metrics:

===================  ==================================  ==============================================================
record               step                                metrics
===================  ==================================  ==============================================================
``StepTrained``      its own                             all that the trainer tells; of a step that was trained, and
                                                         not of a version that is only had again
``StepEnded``        its own                             the same of steps that make no version; names begin with
                                                         the stage, or with the shadow's or the replay's name
``BatchRecord``      a train batch's number, which is    those of its tasks, when it is finalized
                     its step; the version that an
                     evaluation asked for
===================  ==================================  ==============================================================

A step that is trained again after a crash or a rollback is on the log again, and is told again: what was first is not
taken back. What is no finite number is left out.
"""

import contextlib
import fcntl
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from msgspec import Struct

from schemas import BatchLifecycleState, BatchRecord, StepEnded, StepTrained
from schemas.record import Metrics
from schemas.topic import Topic
from schemas.topics import BATCHES, STEPS, TRAINER_EVENTS
from trinity_bus.bus import Received
from trinity_bus.errors import TrinityError

TOPICS: Final[tuple[Topic, ...]] = (TRAINER_EVENTS, STEPS, BATCHES)  # Where such records lie


class MetricsLine(Struct, frozen=True):
    topic: str
    partition: int
    offset: int
    at: float  # Seconds since the epoch
    step: int
    metrics: Metrics


def line_of(received: Received[Any]) -> MetricsLine | None:
    match received.record:
        case StepTrained(again=False) as event:
            step, metrics = event.step, event.metrics
        case StepEnded() as event:
            step, metrics = event.step, _named(event)
        case BatchRecord(state=BatchLifecycleState.FINALIZED) as batch:
            step = batch.sequence if batch.batch_type == "train" else batch.min_version
            metrics = batch.metrics
        case _:
            return None
    sound = {name: value for name, value in metrics.items() if math.isfinite(value)}
    if not sound:
        return None
    place = (received.topic.name, received.partition, received.offset)
    return MetricsLine(*place, received.timestamp_ms / 1000, step, sound)


def _named(event: StepEnded) -> Metrics:
    # Metrics under names of their own, where another trainer of the mesh has steps of the same numbers
    _, _, stage = event.trainer.partition("/")
    before = event.trainer if event.follows is not None else stage
    return {f"{before}/{name}": value for name, value in event.metrics.items()} if before else event.metrics


NAME: Final = "metrics.jsonl"


class MetricsLedgerError(TrinityError):
    """It cannot be used."""


class _Head(msgspec.Struct, frozen=True):
    log: dict[str, str]  # Of each topic the cluster, and the id that it was made with


class MetricsLedger:
    """An open ledger. Raises MetricsLedgerError where it is of another log, is open elsewhere, or cannot be read."""

    def __init__(self, folder: Path, log: Mapping[str, str]) -> None:
        self.path = folder / NAME
        with self._told():
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b")
        self.lines = 0  # How many there are
        self.positions: dict[tuple[str, int], int] = {}  # What to read next of each partition that has a line
        with self._told(), contextlib.ExitStack() as failed:
            failed.callback(self._file.close)
            self._lock()
            self._read(dict(log))
            failed.pop_all()

    def append(self, lines: Sequence[MetricsLine]) -> None:
        """Add lines, and have them on the disk. After a MetricsLedgerError it goes on behind the last that is whole."""
        with self._told():
            for line in lines:
                self._file.write(msgspec.json.encode(line) + b"\n")
                self._count(line)
            self._file.flush()
            os.fsync(self._file.fileno())

    def since(self, first: int) -> Iterator[MetricsLine]:
        """Return the lines from one on, counted from 0."""
        with self.path.open("rb") as file:
            next(file)
            for number, text in enumerate(file):
                if number >= first:
                    yield msgspec.json.decode(text, type=MetricsLine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # What could not be written is tried once more.
        with self._told():
            self._file.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise MetricsLedgerError(f"{self.path} cannot be written or read: {error}") from error

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MetricsLedgerError(f"another tracker writes {self.path}: stop it, or give another folder") from None

    def _read(self, log: dict[str, str]) -> None:
        self._file.seek(0)
        whole = 0
        for text in self._file:
            if not text.endswith(b"\n"):
                break
            try:
                if whole:
                    self._count(msgspec.json.decode(text, type=MetricsLine))
                elif msgspec.json.decode(text, type=_Head).log != log:
                    raise MetricsLedgerError(
                        f"{self.path} is of another log, or its topics were made anew: give another folder"
                    )
            except (msgspec.MsgspecError, RecursionError) as error:
                raise MetricsLedgerError(
                    f"{self.path}, line {self.lines + 2}, was not written by a tracker: {error}"
                ) from None
            whole += len(text)
        self._file.truncate(whole)
        if whole == 0:
            self._file.write(msgspec.json.encode(_Head(log)) + b"\n")
            self._file.flush()

    def _count(self, line: MetricsLine) -> None:
        self.lines += 1
        self.positions[line.topic, line.partition] = line.offset + 1
