"""Which records have metrics, of which step. Pure.

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

import math
from typing import Any, Final

from msgspec import Struct

from schemas import BatchLifecycleState, BatchRecord, StepEnded, StepTrained
from schemas.record import Metrics
from schemas.topic import Topic
from schemas.topics import BATCHES, STEPS, TRAINER_EVENTS
from trinity_bus.bus import Received

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
