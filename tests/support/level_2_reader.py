"""How the version before read the coordinator's state, of level 2: its decoder, as it was.

History, kept to show that what is written today before an upgrade is finalized can be read by that version. It raises
what that version raised: a missing key, a tuple of another length, an unknown kind.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgpack

from schemas import BatchLifecycleState as State
from schemas import FinalizeBatch, StepTrained, Task
from schemas.codec import decode

STATE_VERSION = 2
COUNTERS = (
    *("tasks", "batches", "unnamed", "filled", "sequence", "finalized"),
    *("timed_attempts", "attempt_seconds"),
)
KINDS = {
    *("books", "sync", "explorer", "assigned", "batch", "tasks", "ended", "progress", "answer", "results"),
    *("finalizers", "done", "closed", "outcomes", "replies"),
}


def read(entries: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """What that version makes of a state: bodies by kind and name.

    Raises:
        ValueError: It would have refused to start.
    """
    kinds: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    for key, value in entries.items():
        kind, _, name = key.partition("/")
        if kind not in kinds:
            raise ValueError(f"entry {key!r} of the coordinator's state is of no kind that this program knows")
        version, body = msgpack.unpackb(value)
        if version != STATE_VERSION:
            raise ValueError(
                f"entry {key!r} of the coordinator's state has version {version!r}, this program reads {STATE_VERSION}"
            )
        kinds[kind][name] = _READERS[kind](body)
    _check(kinds)
    return kinds


def _check(kinds: dict[str, dict[str, Any]]) -> None:
    """What it looked up in other entries."""
    tasks = {
        task["task_id"]: task
        for number, items in kinds["tasks"].items()
        for place, task in enumerate(items)
        if not kinds["ended"].get(number, 0) >> place & 1
    }
    for name, attempts in kinds["assigned"].items():
        assert name in kinds["explorer"]
        assert all(attempt["task_id"] in tasks for attempt in attempts)
    assert all(name.partition("/")[2] in tasks for name in kinds["answer"])
    assert all(name in tasks for name in kinds["progress"])
    assert all(name.partition("/")[2] in kinds["batch"] for name in kinds["results"])
    assert all(task["batch_id"] in kinds["batch"] for task in tasks.values())


def _books(body: Any) -> Any:
    return {name: body[name] for name in COUNTERS if name in body}


def _explorer(body: Any) -> Any:
    keys = ("incarnation", "state", "slots", "version", "workflows", "gone", "zombies", "distrusted")
    return {key: body[key] for key in keys}


def _batch(body: Any) -> Any:
    keys = ("type", "expected", "number", "unnamed", "born", "min_wait_num", "filled", "sequence", "min_version")
    batch = {key: body[key] for key in keys} | {"state": State(body["state"])}
    if batch["expected"] is None:
        batch["finished"], batch["failed"], batch["aborted"] = body["counts"]
    return batch


def _task(item: bytes) -> Any:
    batch_id, order, partition, offset, context, runs, per_part, task = msgpack.unpackb(item)
    found = decode(task, Task)
    return {
        "task_id": found.task_id,
        "task": found,
        "batch_id": batch_id,
        "order": order,
        "origin": (partition, offset),
        "traceparent": context,
        "split": (runs, per_part),
    }


def _progress(body: Any) -> Any:
    parts = [(index, lost, failed, failed_on) for index, lost, failed, failed_on in body["parts"]]
    return {"last_ended": body["last_ended"], "first_error": body["first_error"], "parts": parts}


def _assigned(body: Any) -> Any:
    return [
        {"task_id": task_id, "part": part, "number": number, "timeout_s": timeout_s}
        for task_id, part, number, timeout_s in body
    ]


def _part(packed: Any) -> Any:
    attempt, samples, place = packed
    return attempt, samples, None if place is None else (place[0], place[1])


def _answer(body: Any) -> Any:
    completed_runs, whole, metrics, low, high, seconds, elapsed, error, explorer, traceparent = body[1:]
    return _part(body[0]), completed_runs, whole, metrics, low, high, seconds, elapsed, error, explorer, traceparent


def _result(item: bytes) -> Any:
    order, task_id, status, parts, error, low, high, metrics, context, elapsed = msgpack.unpackb(item)
    return order, task_id, status, [_part(part) for part in parts], error, low, high, metrics, context, elapsed


def _finalizers(body: Any) -> Any:
    return [(decode(command, FinalizeBatch), context, timeout_s) for command, context, timeout_s in body]


def _outcome(body: Any) -> Any:
    name, value = body[0], body[1]
    batch_id, batch_type, state, count, metrics = msgpack.unpackb(value)
    return name, batch_id, batch_type, State(state), count, metrics


def _reply(body: Any) -> Any:
    error, detail = msgpack.unpackb(body[1])
    return body[0], error, detail


def _sync(body: Any) -> Any:
    plain = (
        *("traceparent", "held_traceparent", "asked_after", "wanted", "pinned", "epoch", "intact", "pending"),
        "zombies",
    )
    return {key: body[key] for key in plain} | {
        "release": None if body["release"] is None else decode(body["release"], StepTrained),
        "held": None if body["held"] is None else decode(body["held"], StepTrained),
        "choice": None if body["choice"] is None else _choice(**body["choice"]),
        "group": tuple((name, incarnation) for name, incarnation in body["group"]),
        "rounds": {(name, incarnation): count for name, incarnation, count in body["rounds"]},
    }


def _choice(  # noqa: PLR0917 - as it was
    version: int,
    client: str,
    command_id: str,
    traceparent: str | None,
    step: bytes | None = None,
    step_traceparent: str | None = None,
) -> Any:
    found = None if step is None else decode(step, StepTrained)
    return version, client, command_id, traceparent, found, step_traceparent


_READERS: dict[str, Callable[..., Any]] = {
    "books": _books,
    "sync": _sync,
    "explorer": _explorer,
    "assigned": _assigned,
    "batch": _batch,
    "tasks": lambda items: [_task(item) for item in items],
    "ended": int,
    "progress": _progress,
    "answer": _answer,
    "results": lambda items: [_result(item) for item in items],
    "finalizers": _finalizers,
    "done": list,
    "closed": list,
    "outcomes": _outcome,
    "replies": _reply,
}
