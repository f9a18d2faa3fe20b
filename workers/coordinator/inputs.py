"""Records as inputs of the machine."""

from collections.abc import Iterable
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
from schemas.topics import OPERATOR_COMMANDS
from trinity_bus.bus import Received, Undecodable
from trinity_bus.coordination import CommandArrived, ContributionArrived, EventArrived, Input, Origin, TaskArrived
from trinity_bus.telemetry import traceparent
from workers.coordinator.spans import Spans, sound

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
