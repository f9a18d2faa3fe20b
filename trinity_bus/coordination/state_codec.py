"""Entries of the coordinator's state as bytes: the values of its changelog.

Each is a msgpack array ``[STATE_VERSION, body]``; the body is a map (of a window: a list of names). Rules as for
records: a new key has a default and an unknown key is ignored; anything else is a new version. Records inside a body
are bytes of the record codec, and follow its rules.
"""

from typing import Any

import msgpack

from schemas import BatchLifecycleState as State
from schemas import ManifestEntry, StepTrained, Task
from schemas.codec import decode, encode
from trinity_bus.coordination.batches import Batch
from trinity_bus.coordination.fleet import Explorer
from trinity_bus.coordination.inputs import Origin
from trinity_bus.coordination.ledger import Counters
from trinity_bus.coordination.tasks import Attempt, OpenTask, Result
from trinity_bus.coordination.versions import SyncState
from trinity_bus.errors import TrinityError

STATE_VERSION = 1


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
    return {
        "type": batch.batch_type,
        "expected": batch.expected,
        "number": batch.number,
        "unnamed": batch.unnamed,
        "state": batch.state.value,
        "filled": batch.filled,
        "sequence": batch.sequence,
        "min_version": batch.min_version,
    }


def batch_of(batch_id: str, body: dict[str, Any]) -> Batch:
    """The inverse of :func:`batch_body`."""
    return Batch(
        batch_id=batch_id,
        batch_type=body["type"],
        expected=body["expected"],
        number=body["number"],
        unnamed=body["unnamed"],
        state=State(body["state"]),
        filled=body["filled"],
        sequence=body["sequence"],
        min_version=body["min_version"],
    )


def task_body(task: OpenTask) -> dict[str, Any]:
    """Of ``task/<id>``: what never changes about it."""
    return {
        "task": encode(task.task),
        "batch_id": task.batch_id,
        "order": task.order,
        "origin": (task.origin.partition, task.origin.offset),
        "traceparent": task.traceparent,
    }


def attempt_body(task: OpenTask) -> dict[str, Any]:
    """Of ``attempt/<id>``: what changes about a task, from its first attempt on."""
    attempt = task.running
    return {
        "attempts": task.attempts,
        "running": None if attempt is None else (attempt.explorer, attempt.incarnation, attempt.timeout_s),
        "first_error": task.first_error,
        "failed_on": task.failed_on,
    }


def task_of(body: dict[str, Any], changing: dict[str, Any] | None, now: float) -> OpenTask:
    """The inverse of :func:`task_body` and :func:`attempt_body`; a running attempt gets its whole time again."""
    task = OpenTask(
        task=decode(body["task"], Task),
        batch_id=body["batch_id"],
        order=body["order"],
        origin=Origin(*body["origin"]),
        traceparent=body["traceparent"],
    )
    if changing is not None:
        task.attempts = changing["attempts"]
        task.first_error = changing["first_error"]
        task.failed_on = changing["failed_on"]
        if changing["running"] is not None:
            explorer, incarnation, timeout_s = changing["running"]
            task.running = Attempt(task.attempts, explorer, incarnation, timeout_s, now + timeout_s)
    return task


def result_body(batch_id: str, result: Result) -> dict[str, Any]:
    """Of ``result/<task id>``."""
    return {
        "batch_id": batch_id,
        "order": result.order,
        "entry": result.entry.model_dump(mode="python", exclude_none=True),
        "metrics": result.metrics,
        "traceparent": result.traceparent,
        "failed": result.failed,
    }


def result_of(body: dict[str, Any]) -> tuple[str, Result]:
    """The inverse of :func:`result_body`."""
    result = Result(
        order=body["order"],
        entry=ManifestEntry.model_validate(body["entry"]),
        metrics=body["metrics"],
        traceparent=body["traceparent"],
        failed=body["failed"],
    )
    return body["batch_id"], result


def sync_body(state: SyncState) -> dict[str, Any]:
    """Of ``sync``."""
    return {
        "release": None if state.release is None else encode(state.release),
        "traceparent": state.traceparent,
        "held": None if state.held is None else encode(state.held),
        "held_traceparent": state.held_traceparent,
        "asked_after": state.asked_after,
        "wanted": state.wanted,
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
        epoch=body["epoch"],
        group=tuple((name, life) for name, life in body["group"]),
        intact=body["intact"],
        pending=body["pending"],
        rounds={(name, life): count for name, life, count in body["rounds"]},
        zombies=tuple(body["zombies"]),
    )
