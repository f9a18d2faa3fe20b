"""What was read and decided and is not committed yet, and errors that an input causes.

If the machine, or writing its effects, raises an exception, that is a bug of this program, because every record that
can be decoded can be handled. But the log keeps the input, and a program that ends at it would end at it again after
each start. So the input is refused as a dead letter with the traceback::

    exception --> the transaction in progress, if any, is awaited
              --> the machine is discarded, and restored from the entries of the last commit
              --> each input since then, separately:  handle and commit
                                                      exception --> restore again; dead letter, commit

Exceptions of the log or its client are different: it is then unknown what is committed, and the process becomes a
standby again.
"""

import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from schemas import (
    AbortBatch,
    CancelTasks,
    FinalizeBatch,
    FinalizeUpgrade,
    PublishVersion,
    RollBack,
    RunnersReport,
    SkipBatch,
    SubmitBatch,
    Task,
)
from schemas.errors import one_line
from schemas.topics import OPERATOR_COMMANDS, TASKS
from trinity_bus.bus import Received, Undecodable
from trinity_bus.coordination import (
    CommandArrived,
    ContributionArrived,
    Effect,
    EventArrived,
    Input,
    Origin,
    TaskArrived,
)
from trinity_bus.errors import BusError, RecordTooLargeError
from trinity_bus.telemetry import traceparent
from workers.coordinator.spans import Spans, sound

REASON = "not_handled"
_FRAMES = 12


def is_input_error(error: BaseException) -> bool:
    if not isinstance(error, Exception):
        return False
    return isinstance(error, RecordTooLargeError) or not isinstance(error, BusError)


def with_traceback(error: BaseException) -> str:
    """Return an error with its traceback, innermost first, as one line."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return f"{one_line(f'{type(error).__name__}: {error}')} at {' < '.join(_places(frames))}"


def _places(frames: Iterable[traceback.FrameSummary]) -> list[str]:
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames][:_FRAMES]


REQUESTS = (SubmitBatch, FinalizeBatch, AbortBatch, CancelTasks, SkipBatch, PublishVersion, RollBack, FinalizeUpgrade)


def inputs_of(received: Iterable[Received[Any]], spans: Spans) -> list[Input]:
    """Return what the machine decides upon; reports of runners are for people, and what cannot be read for nobody."""
    inputs: list[Input] = []
    for item in received:
        record = item.record
        if isinstance(record, Task):
            span = spans.process(item, record)
            context = sound(item.traceparent) or traceparent(span)
            inputs.append(TaskArrived(record, Origin(item.partition, item.offset), context))
        elif isinstance(record, REQUESTS):
            inputs.append(CommandArrived(record, sound(item.traceparent), item.topic is OPERATOR_COMMANDS))
        elif isinstance(record, ContributionArrived):
            inputs.append(msgspec.structs.replace(record, traceparent=sound(record.traceparent)))
        elif not isinstance(record, RunnersReport | Undecodable):
            inputs.append(EventArrived(record, sound(item.traceparent)))
    return inputs


@dataclass(slots=True)
class PendingCommit:
    spans: Spans
    effects: list[Effect] = field(default_factory=list)  # in the order of the decisions
    unreadable: list[Received[Any]] = field(default_factory=list)
    # What the machine could not decide upon, and why.
    failed_inputs: list[tuple[Received[Any], str]] = field(default_factory=list)
    originals: dict[Origin, Received[Any]] = field(default_factory=dict)  # tasks as they came
    received: list[Received[Any]] = field(default_factory=list)  # all that it is made of, in the order of the decisions

    def take(self, received: Iterable[Received[Any]]) -> tuple[int, int]:
        # How many tasks are among them, and their bytes.
        tasks = task_bytes = 0
        for item in received:
            self.received.append(item)
            if isinstance(item.record, Undecodable):
                self.unreadable.append(item)
            if item.topic is TASKS:
                self.originals[Origin(item.partition, item.offset)] = item
                tasks, task_bytes = tasks + 1, task_bytes + len(item.raw)
        return tasks, task_bytes
