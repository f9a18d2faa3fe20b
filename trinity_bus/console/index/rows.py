"""What the store keeps of each record of the log, as rows of its tables. Pure.

A record that the tables have no place for gives none. Of tables that are numbered by time (``schema.NUMBERED``) the
first value is the time, in milliseconds. Experiences have a module of their own: :mod:`.group_rows`.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from schemas import (
    BatchLifecycleState,
    BatchRecord,
    CoordinatorHeartbeat,
    ExplorerHeartbeat,
    ModelVersion,
    PublishedVersion,
    RolloutFinished,
    StepTrained,
    Task,
    TaskResult,
    TokenFigures,
    TrainerHeartbeat,
    WeightsSynced,
)
from schemas.batch import ResultPart
from schemas.codec import encode
from schemas.record import Metrics
from schemas.rollout import Cancel, Dispatch
from schemas.step import StepBegun, StepEnded
from schemas.topics import ALL_DEAD_LETTERS
from trinity_bus.bus import Received
from trinity_bus.bus.read.received import refusal_of
from trinity_bus.console.index.terms import HEAD_CHARS
from trinity_bus.rollout.metrics import reward_of

type Row = tuple[Any, ...]
type TableRow = tuple[str, Row]  # A table's name, and a row of it

MAX_TEXT_CHARS: Final = 2000  # Of what people have to read whole: an error, a reason
MAX_METRICS: Final = 1000  # Of one record; more are left out, and those with names that are longer than a text's head
_MINUTE_MS: Final = 60_000
_DEAD: Final = frozenset(topic.name for topic in ALL_DEAD_LETTERS)


def rows_of(received: Received[Any]) -> Iterator[TableRow]:  # noqa: C901, PLR0912 - a case for each kind of record
    """Return the rows of a record that could be read and holds no experiences."""
    if received.topic.name in _DEAD:
        yield _dead_letter(received)
        return
    record, at = received.record, received.timestamp_ms
    place = (received.partition, received.offset)
    event = (at, received.topic.name, *place)
    match record:
        case Task():
            yield "tasks", _task(record, at, place)
        case Dispatch():
            runs = f"runs {record.run_id_base} to {record.run_id_base + record.repeat_times - 1}"
            yield "events", (*event, record.task.task_id, "dispatched", record.attempt, record.explorer, runs)
        case Cancel():
            why = cut(record.reason)
            yield "events", (*event, record.task_id, "cancelled", record.attempt, record.explorer, why)
        case RolloutFinished():
            text = record.status if record.error is None else cut(f"{record.status}: {record.error}")
            yield "events", (*event, record.task_id, "finished", record.attempt, record.explorer, text)
        case TaskResult():
            yield "results", (at, *place, record.task_id, record.batch_id, record.status, cut(record.error))
            for first, where in _placed(record.parts):
                yield "parts", (record.task_id, *where, first)
        case BatchRecord():
            yield from _batch(record, at)
        case StepBegun():
            yield from _begun(record, at, received.offset)
        case StepTrained(again=False) | StepEnded():
            yield from _trained(record, at)
        case TokenFigures():
            of = (record.trainer, record.run, record.step, record.position.partition, record.position.offset)
            yield "token_figures", (at, *place, *of, record.samples[0], record.samples[-1])
        case PublishedVersion():
            yield "versions", _version(record, at)
        case ModelVersion():
            yield "announced", (at, record.model, record.version, record.pinned)
        case WeightsSynced():
            taken = (record.explorer, record.model, record.version, record.ok)
            yield "syncs", (at, *taken, record.transfer_s, record.pause_s)
        case ExplorerHeartbeat():
            seen = (record.state, record.model_version, record.slots, len(record.running))
            beat = (record.explorer, at // _MINUTE_MS, at, record.incarnation)
            yield "fleet", (*beat, *seen, record.tokens_generated, record.pool)
            yield from _settings("explorer", record.explorer, record.settings, at)
        case TrainerHeartbeat():
            yield from _settings("trainer", record.trainer, record.settings, at)
        case CoordinatorHeartbeat():
            yield from _settings("coordinator", record.coordinator, record.settings, at)
        case _:
            return


def cut(text: str | None, chars: int = MAX_TEXT_CHARS) -> str | None:
    return None if text is None else text[:chars]


def kept_metrics(metrics: Metrics) -> Metrics:
    """Return the metrics that are kept: those that are numbers, the first ones."""
    sound = ((name, value) for name, value in metrics.items() if math.isfinite(value) and len(name) <= HEAD_CHARS)
    return dict(islice(sound, MAX_METRICS))


def _task(task: Task, at: int, place: tuple[int, int]) -> Row:
    prompt = task.prompt
    if prompt is None and task.messages:
        content = task.messages[-1].content
        prompt = content if isinstance(content, str) else " ".join(part.text for part in content or ())
    heads = cut(prompt, HEAD_CHARS), cut(task.answer, HEAD_CHARS)
    return (at, *place, task.task_id, task.workflow, task.batch_id, task.producer, *heads)


def _points(metrics: Metrics, at: int, trainer: str | None, step: int) -> Iterator[TableRow]:
    for name, value in metrics.items():
        yield "points", (name, at, trainer, step, value)


def _batch(batch: BatchRecord, at: int) -> Iterator[TableRow]:
    metrics = kept_metrics(batch.metrics)
    kept: dict[str, Any] = {"metrics": metrics, "reason": cut(batch.reason), "manifest": [], "trace_links": []}
    record = encode(batch.model_copy(update=kept))
    yield "batches", (at, batch.batch_id, batch.batch_type, reward_of(batch.metrics), record)
    if batch.state is BatchLifecycleState.FINALIZED:
        # What a train batch leads to is the step of its number; an evaluation is of the version that it asked for.
        step = batch.sequence if batch.batch_type == "train" else batch.min_version
        yield from _points(metrics, at, None, step)


def _begun(step: StepBegun, at: int, offset: int) -> Iterator[TableRow]:
    left_out = sum(len(one.samples) for one in step.left_out)
    samples = sum(part.samples for group in (*step.groups, *step.replayed) for part in group.parts)
    examples = len(step.demonstrations) + len(step.preferences)
    who = (step.trainer, step.run, step.model, step.step, step.batch_id, step.sequence)
    counts = (len(step.groups), samples - left_out, left_out, len(step.replayed), examples)
    yield "begun", (at, offset, *who, *counts, step.skipped, step.follows, step.next_offset > 0)
    for replayed, groups in ((False, step.groups), (True, step.replayed)):
        for group in groups:
            for first, place in _placed(group.parts):
                yield "step_groups", (offset, *place, first, replayed)
    for one in step.left_out:
        yield "left_out", (offset, one.task_id, one.reason, json.dumps(one.samples), cut(one.detail))


def _placed(parts: Iterable[ResultPart]) -> Iterable[tuple[int, tuple[int, int]]]:
    # Where the parts of a group lie on the log, each with the place of its first sample in the whole group
    first = 0
    for part in parts:
        if part.position is not None:
            yield first, (part.position.partition, part.position.offset)
        first += part.samples


def _trained(event: StepTrained | StepEnded, at: int) -> Iterator[TableRow]:
    metrics = kept_metrics(event.metrics)
    match event:
        case StepTrained():
            # Of a stage, what it has begun is under another name than the service's.
            trainer, checksum, follows = event.writer or event.trainer, cut(event.checksum), None
        case StepEnded():
            trainer, checksum, follows = event.trainer, None, event.follows
    what = (trainer, event.model, event.step, event.batch_id, event.seconds)
    yield "trained", (at, *what, checksum, follows, json.dumps(metrics))
    yield from _points(metrics, at, trainer, event.step)


def _version(version: PublishedVersion, at: int) -> Row:
    kept: dict[str, Any] = {"trainer": version.writer or version.trainer, "metrics": kept_metrics(version.metrics)}
    kept |= {"checksum": cut(version.checksum), "checkpoint": cut(version.checkpoint), "skipped": []}
    skipped = json.dumps([one.batch_id for one in version.skipped])
    return (at, version.model, version.version, skipped, encode(version.model_copy(update=kept)))


def _settings(service: str, name: str, told: Mapping[str, str], at: int) -> Iterator[TableRow]:
    if told:
        yield "settings", (at, service, name, json.dumps(told))


def _dead_letter(received: Received[Any]) -> TableRow:
    found = refusal_of(received)
    what = (cut(found.reason, HEAD_CHARS), cut(found.detail), cut(found.topic, HEAD_CHARS))
    where = (cut(found.source, HEAD_CHARS), cut(received.key or "", HEAD_CHARS))
    head = received.raw[: 4 * HEAD_CHARS].decode("utf-8", "backslashreplace")[:HEAD_CHARS]
    place = (received.topic.name, received.partition, received.offset)
    return "dead_letters", (received.timestamp_ms, *place, *what, *where, head)
