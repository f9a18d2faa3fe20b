"""Entries of the coordinator's state as bytes: the values of its changelog.

Each is a msgpack array ``[STATE_VERSION, body]``; the body is a map, or a list of things that are all alike. Rules as
for records: a new key has a default and an unknown key is ignored; anything else is a new version. Records inside a
body are bytes of the record codec, and follow its rules.
"""

from collections.abc import Iterable
from typing import Any

import msgpack

from schemas import BatchLifecycleState as State
from schemas import FinalizeBatch, ManifestEntry, Position, ResultPart, StepTrained, Task
from schemas.codec import decode, encode
from schemas.command import BatchResult
from trinity_bus.coordination.batches import EVERYBODY, NOBODY, Batch
from trinity_bus.coordination.counters import Counters
from trinity_bus.coordination.finalizers import Finalizer
from trinity_bus.coordination.fleet import Explorer
from trinity_bus.coordination.inputs import Origin, TaskArrived
from trinity_bus.coordination.parts import Attempt, PartAnswer, split
from trinity_bus.coordination.tasks import OpenTask, Result
from trinity_bus.coordination.versions import Choice, SyncState
from trinity_bus.errors import TrinityError

STATE_VERSION = 2


class StateError(TrinityError, ValueError):
    """The coordinator's changelog cannot be read."""


def pack(body: Any) -> bytes:
    """An entry's value."""
    value: bytes = msgpack.packb([STATE_VERSION, body])
    return value


def unpack(key: str, value: bytes) -> Any:
    """The body of an entry.

    Raises:
        StateError: It is no entry, or of a version that this program does not know.
    """
    try:
        entry = msgpack.unpackb(value)
    except ValueError as error:
        raise StateError(f"entry {key!r} of the coordinator's state is not msgpack: {error}") from error
    if not isinstance(entry, list) or len(entry) != 2:
        raise StateError(f"entry {key!r} of the coordinator's state is not a pair of version and body")
    if entry[0] != STATE_VERSION:
        raise StateError(
            f"entry {key!r} of the coordinator's state has version {entry[0]!r}, this program reads {STATE_VERSION}; "
            "run the coordinator of the release that wrote it, or start in a new namespace"
        )
    return entry[1]


def counters_body(counters: Counters) -> dict[str, Any]:
    """Of ``books``."""
    return {name: getattr(counters, name) for name in Counters.__slots__}


def counters_of(body: dict[str, Any]) -> Counters:
    """The inverse of :func:`counters_body`."""
    return Counters(**{name: body[name] for name in Counters.__slots__ if name in body})


def explorer_body(explorer: Explorer) -> dict[str, Any]:
    """Of ``explorer/<name>``."""
    return {
        "incarnation": explorer.incarnation,
        "state": explorer.state,
        "slots": explorer.slots,
        "version": explorer.version,
        "workflows": sorted(explorer.workflows),
        "gone": explorer.gone,
        "zombies": explorer.zombies,
        "distrusted": explorer.distrusted,
    }


def explorer_of(name: str, body: dict[str, Any]) -> Explorer:
    """The inverse of :func:`explorer_body`."""
    return Explorer(
        name=name,
        incarnation=body["incarnation"],
        state=body["state"],
        slots=body["slots"],
        version=body["version"],
        workflows=frozenset(body["workflows"]),
        gone=body["gone"],
        zombies=tuple(body["zombies"]),
        distrusted=body["distrusted"],
    )


def batch_body(batch: Batch) -> dict[str, Any]:
    """Of ``batch/<id>``. What follows from tasks and results is left out."""
    body: dict[str, Any] = {
        "type": batch.batch_type,
        "expected": batch.expected,
        "number": batch.number,
        "unnamed": batch.unnamed,
        "owner": batch.owner,
        "born": batch.born,
        "min_wait_num": batch.min_wait_num,
        "state": batch.state.value,
        "filled": batch.filled,
        "sequence": batch.sequence,
        "min_version": batch.min_version,
    }
    if batch.is_open:
        body["counts"] = (batch.finished, batch.failed, batch.aborted)
    return body


def batch_of(batch_id: str, body: dict[str, Any], pages: dict[int, list[bytes]]) -> Batch:
    """The inverse of :func:`batch_body`, with the results of the batch."""
    batch = Batch(
        batch_id=batch_id,
        batch_type=body["type"],
        expected=body["expected"],
        number=body["number"],
        unnamed=body["unnamed"],
        owner=body.get("owner", EVERYBODY if body["unnamed"] else NOBODY),
        born=body["born"],
        min_wait_num=body["min_wait_num"],
        state=State(body["state"]),
        filled=body["filled"],
        sequence=body["sequence"],
        min_version=body["min_version"],
    )
    if batch.is_open:
        batch.finished, batch.failed, batch.aborted = body["counts"]
    for _, items in sorted(pages.items()):
        for item in items:
            result = result_of(item)
            batch.count(result)
            batch.keep(result, item)
    # Page by page as they were, whatever would fit into one now.
    batch.packed.restore(pages)
    return batch


def task_bytes(arrived: TaskArrived, batch_id: str, order: int, runs: int, per_part: int | None) -> bytes:
    """An item of ``tasks/<n>``: what never changes about a task."""
    origin = arrived.origin
    item: bytes = msgpack.packb(
        (batch_id, order, origin.partition, origin.offset, arrived.traceparent, runs, per_part, encode(arrived.task))
    )
    return item


def task_of(item: bytes, page: int) -> OpenTask:
    """The inverse of :func:`task_bytes`: the task as it was when it was accepted."""
    batch_id, order, partition, offset, context, runs, per_part, task = msgpack.unpackb(item)
    return OpenTask(
        task=decode(task, Task),
        batch_id=batch_id,
        order=order,
        origin=Origin(partition, offset),
        traceparent=context,
        parts=split(runs, per_part),
        page=page,
    )


def progress_body(task: OpenTask) -> dict[str, Any]:
    """Of ``progress/<task id>``."""
    return {
        "last_ended": task.last_ended,
        "first_error": task.first_error,
        "parts": [(p.index, p.lost, p.failed, p.failed_on) for p in task.parts if p.lost],
    }


def take_progress(task: OpenTask, body: dict[str, Any]) -> None:
    """The inverse of :func:`progress_body`."""
    task.progressed = True
    task.attempts = task.last_ended = body["last_ended"]
    task.first_error = body["first_error"]
    for index, lost, failed, failed_on in body["parts"]:
        part = task.parts[index]
        part.lost, part.failed_on = lost, failed_on
        if failed:
            task.fail(part)


def assigned_body(attempts: Iterable[Attempt]) -> list[Any]:
    """Of ``assigned/<explorer>``."""
    return [(a.task_id, a.part, a.number, a.timeout_s) for a in attempts]


def take_attempt(task: OpenTask, item: Any, explorer: Explorer, now: float) -> Attempt:
    """The inverse of :func:`assigned_body`, for one of them: it gets its whole time again."""
    _, part, number, timeout_s = item
    attempt = Attempt(task.task.task_id, part, number, explorer.name, explorer.incarnation, timeout_s, now + timeout_s)
    task.resume(attempt)
    return attempt


def answer_body(answer: PartAnswer) -> tuple[Any, ...]:
    """Of ``answer/<part>/<task id>``."""
    return (
        _part(answer.part),
        answer.completed_runs,
        answer.whole,
        answer.metrics,
        answer.version_min,
        answer.version_max,
        answer.seconds,
        answer.elapsed,
        answer.error,
        answer.explorer,
        answer.traceparent,
    )


def answer_of(body: Any) -> PartAnswer:
    """The inverse of :func:`answer_body`."""
    return PartAnswer(_part_of(body[0]), *body[1:])


def result_bytes(result: Result) -> bytes:
    """An item of ``results/<n>/<batch id>``."""
    entry = result.entry
    item: bytes = msgpack.packb(
        (
            result.order,
            entry.task_id,
            entry.status,
            [_part(part) for part in entry.parts],
            entry.error,
            entry.version_min,
            entry.version_max,
            result.metrics,
            result.traceparent,
            result.elapsed,
        )
    )
    return item


def result_of(item: bytes) -> Result:
    """The inverse of :func:`result_bytes`."""
    order, task_id, status, parts, error, version_min, version_max, metrics, context, elapsed = msgpack.unpackb(item)
    entry = ManifestEntry(
        task_id=task_id,
        status=status,
        parts=[_part_of(part) for part in parts],
        error=error,
        version_min=version_min,
        version_max=version_max,
    )
    return Result(order=order, entry=entry, metrics=metrics, traceparent=context, elapsed=elapsed)


def finalizers_body(finalizers: Iterable[Finalizer]) -> list[Any]:
    """Of ``finalizers/<batch id>``."""
    return [(encode(one.command), one.traceparent, one.timeout_s) for one in finalizers]


def finalizers_of(body: list[Any], now: float) -> list[Finalizer]:
    """The inverse of :func:`finalizers_body`; each gets its whole time again."""
    return [
        Finalizer(decode(command, FinalizeBatch), context, timeout_s, now + timeout_s)
        for command, context, timeout_s in body
    ]


def outcome_bytes(result: BatchResult) -> bytes:
    """The value of an item of ``outcomes/<n>``: what became of a batch."""
    item: bytes = msgpack.packb(
        (result.batch_id, result.batch_type, result.state.value, result.finished_task_count, result.metrics)
    )
    return item


def outcome_of(item: bytes) -> BatchResult:
    """The inverse of :func:`outcome_bytes`."""
    batch_id, batch_type, state, count, metrics = msgpack.unpackb(item)
    return BatchResult(
        batch_id=batch_id, batch_type=batch_type, state=State(state), finished_task_count=count, metrics=metrics
    )


def _part(part: ResultPart) -> tuple[int, int, tuple[int, int] | None]:
    position = part.position
    return part.attempt, part.samples, None if position is None else (position.partition, position.offset)


def _part_of(packed: Any) -> ResultPart:
    attempt, samples, place = packed
    position = None if place is None else Position(partition=place[0], offset=place[1])
    return ResultPart(attempt=attempt, samples=samples, position=position)


def sync_body(state: SyncState) -> dict[str, Any]:
    """Of ``sync``."""
    return {
        "release": None if state.release is None else encode(state.release),
        "traceparent": state.traceparent,
        "held": None if state.held is None else encode(state.held),
        "held_traceparent": state.held_traceparent,
        "asked_after": state.asked_after,
        "wanted": state.wanted,
        "pinned": state.pinned,
        "choice": None if state.choice is None else _choice_body(state.choice),
        "epoch": state.epoch,
        "group": state.group,
        "intact": state.intact,
        "pending": state.pending,
        "rounds": [(name, life, count) for (name, life), count in state.rounds.items()],
        "zombies": state.zombies,
    }


def sync_of(body: dict[str, Any]) -> SyncState:
    """The inverse of :func:`sync_body`."""
    return SyncState(
        release=None if body["release"] is None else decode(body["release"], StepTrained),
        traceparent=body["traceparent"],
        held=None if body["held"] is None else decode(body["held"], StepTrained),
        held_traceparent=body["held_traceparent"],
        asked_after=body["asked_after"],
        wanted=body["wanted"],
        pinned=body["pinned"],
        choice=None if body["choice"] is None else _choice_of(body["choice"]),
        epoch=body["epoch"],
        group=tuple((name, life) for name, life in body["group"]),
        intact=body["intact"],
        pending=body["pending"],
        rounds={(name, life): count for name, life, count in body["rounds"]},
        zombies=tuple(body["zombies"]),
    )


def _choice_body(choice: Choice) -> dict[str, Any]:
    return {
        "version": choice.version,
        "client": choice.client,
        "command_id": choice.command_id,
        "traceparent": choice.traceparent,
        "step": None if choice.step is None else encode(choice.step),
        "step_traceparent": choice.step_traceparent,
    }


def _choice_of(body: dict[str, Any]) -> Choice:
    step = None if body["step"] is None else decode(body["step"], StepTrained)
    return Choice(**{**body, "step": step})
