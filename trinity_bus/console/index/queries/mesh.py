"""The mesh as a whole: how much there is, charts, explorers, dead letters, and the way of one task."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from trinity_bus.console.index.answers import (
    DeadLetterRow,
    ExplorerRow,
    Extent,
    GroupRow,
    PassedOver,
    Place,
    Point,
    RowPage,
    Series,
    SettingsRow,
    TaskEvent,
    TaskTimeline,
)
from trinity_bus.console.index.queries.conditions import page_values, row_page
from trinity_bus.console.index.queries.groups import groups_of_task
from trinity_bus.console.index.queries.trainers import Whose, whose
from trinity_bus.console.index.questions import (
    ALL_DEAD_LETTERS,
    FIRST_PAGE,
    MAX_LIMIT,
    MAX_NAMES,
    MAX_POINTS,
    Axis,
    DeadLetterFilter,
    PageAsk,
    QuestionError,
)
from trinity_bus.console.index.schema import MAX_AT, SLOT_BITS, last_number, time_of
from trinity_bus.runtime.wording import counted

# What came onto the log, as metrics: by time alone, to the minute
PACE: Final = {
    "log/samples_per_s": "samples",
    "log/groups_per_s": "groups",
    "log/tasks_per_s": "tasks",
    "log/response_tokens_per_s": "response_tokens",
}
_MINUTE_S: Final = 60
_AXES: Final = {"step": "step", "version": "version", "time": "at / 1000.0"}
_NAMES: Final = (
    "WITH RECURSIVE n (name) AS (SELECT min(name) FROM points UNION ALL "
    "SELECT (SELECT min(name) FROM points WHERE points.name > n.name) FROM n WHERE n.name IS NOT NULL) "
    "SELECT name FROM n WHERE name IS NOT NULL LIMIT 10000"
)


def _ms(until: float | None) -> int:
    return MAX_AT if until is None else int(min(max(until * 1000, 0), MAX_AT))


def extent(db: sqlite3.Connection, *, until: float | None = None) -> Extent:
    number, at = last_number(until), _ms(until)
    samples, groups, tasks, first, last = db.execute(
        "SELECT coalesce(sum(samples), 0), coalesce(sum(groups), 0), coalesce(sum(tasks), 0), min(minute), max(minute) "
        "FROM minutes WHERE minute <= ?",
        (at // (1000 * _MINUTE_S),),
    ).fetchone()
    counts = [
        db.execute(query, (number,)).fetchone()[0]
        for query in (
            "SELECT count(DISTINCT batch_id) FROM batches WHERE id <= ?",
            "SELECT count(DISTINCT step) FROM trained WHERE id <= ? AND step > 0",
            "SELECT count(DISTINCT version) FROM versions WHERE id <= ?",
            "SELECT count(*) FROM dead_letters WHERE id <= ?",
        )
    ]
    # Heartbeats and batches come before the first sample, and go on behind the last.
    beats = db.execute("SELECT min(minute), max(minute) FROM fleet WHERE minute <= ?", (at // (1000 * _MINUTE_S),))
    minutes = [minute for minute in (first, last, *beats.fetchone()) if minute is not None]
    return Extent(
        float(min(minutes) * _MINUTE_S) if minutes else None,
        min(float((max(minutes) + 1) * _MINUTE_S), at / 1000) if minutes else None,
        samples,
        groups,
        tasks,
        *counts,
    )


def passed_over(db: sqlite3.Connection) -> PassedOver:
    found = db.execute("SELECT topic, sum(unreadable), sum(lost) FROM offsets GROUP BY topic").fetchall()
    unreadable = {topic: count for topic, count, _ in found if count}
    return PassedOver(unreadable, sum(lost for *_, lost in found))


def metric_names(db: sqlite3.Connection) -> list[str]:
    """Return the names of all metrics: those of steps and of batches, and what came onto the log (``log/...``)."""
    return [*PACE, *(name for (name,) in db.execute(_NAMES))]


def metrics(
    db: sqlite3.Connection,
    names: Sequence[str],
    *,
    by: Axis = "step",
    points: int = 500,
    trainer: str | None = None,
    until: float | None = None,
) -> list[Series]:
    """Return a series of each name, for charts: at most so many points, in the order of the axis.

    Of steps they are those of a trainer's last run; None: of the first of ``trainers``.
    """
    if len(names) > MAX_NAMES:
        raise QuestionError(f"{len(names)} metrics: at most {MAX_NAMES} at once")
    if not 1 <= points <= MAX_POINTS:
        raise QuestionError(f"points = {points}: a series has 1 to {MAX_POINTS}")
    if by not in _AXES:
        raise QuestionError(f"an axis is one of {', '.join(_AXES)}")
    of = whose(db, trainer, until)
    return [Series(name, _series(db, name, by=by, points=points, of=of, until=until)) for name in names]


def _series(db: sqlite3.Connection, name: str, *, by: Axis, points: int, of: Whose, until: float | None) -> list[Point]:
    if name not in PACE:
        source = f"SELECT {_AXES[by]} AS x, value FROM points WHERE name = :name AND at <= :until"
        # Figures of batches are of no trainer.
        source += " AND (trainer = :trainer AND at >= :since_ms OR trainer IS NULL AND :of_batches)"
    elif by == "time":
        # The minute under way is not over.
        source = (
            f"SELECT minute * {_MINUTE_S} AS x, {PACE[name]} / {_MINUTE_S}.0 AS value FROM minutes "
            f"WHERE (minute + 1) * {_MINUTE_S * 1000} <= :until"
        )
    else:
        return []
    values = {"name": name, "until": _ms(until), "points": points, "trainer": of.trainer}
    values |= {"since_ms": of.since >> SLOT_BITS, "of_batches": of.of_batches}
    low, high = db.execute(f"SELECT min(x), max(x) FROM ({source})", values).fetchone()
    if low is None:
        return []
    # Points that share a place of the axis become one; the last place takes the end of it too.
    values |= {"low": low, "width": max((high - low) / points, 1e-9)}
    found = db.execute(
        f"SELECT avg(x), avg(value), min(value), max(value), count(*) FROM ({source}) "
        "GROUP BY min(CAST((x - :low) / :width AS INTEGER), :points - 1) ORDER BY 1",
        values,
    )
    return [Point(*row) for row in found]


def fleet(db: sqlite3.Connection, *, until: float | None = None) -> list[ExplorerRow]:
    """Return the explorers as they last said, by name, those too that were long silent."""
    found = db.execute(
        "SELECT f.explorer, f.at, f.state, f.version, f.slots, f.running, f.pool, f.tokens, e.tokens, e.at "
        "FROM fleet f LEFT JOIN fleet e ON e.explorer = f.explorer AND e.incarnation = f.incarnation AND e.minute = "
        "(SELECT max(minute) FROM fleet WHERE explorer = f.explorer AND minute < f.minute) "
        "WHERE f.minute = (SELECT max(minute) FROM fleet WHERE explorer = f.explorer AND minute <= :minute) "
        "ORDER BY f.explorer LIMIT :rows",
        {"minute": _ms(until) // (1000 * _MINUTE_S), "rows": 2 * MAX_LIMIT},
    )
    return [
        ExplorerRow(
            explorer,
            at / 1000,
            state,
            version,
            slots,
            running,
            tokens_per_s=(tokens - before) * 1000 / (at - before_at)
            if before_at is not None and at > before_at
            else None,
            pool=pool,
        )
        for explorer, at, state, version, slots, running, pool, tokens, before, before_at in found
    ]


def settings(db: sqlite3.Connection, *, service: str | None = None, until: float | None = None) -> list[SettingsRow]:
    """Return what each service was started with last, by service and name."""
    found = db.execute(
        "SELECT max(id), service, name, told FROM settings WHERE id <= ? AND coalesce(service = ?, 1) "
        "GROUP BY service, name ORDER BY service, name LIMIT ?",
        (last_number(until), service, MAX_LIMIT),
    )
    return [SettingsRow(service, name, time_of(number), json.loads(told)) for number, service, name, told in found]


def dead_letters(
    db: sqlite3.Connection,
    wanted: DeadLetterFilter = ALL_DEAD_LETTERS,
    ask: PageAsk = FIRST_PAGE,
    *,
    until: float | None = None,
) -> RowPage[DeadLetterRow]:
    """Return records that could not be taken, the newest first."""
    values = {
        "until": last_number(until),
        **page_values(ask),
        "source": wanted.source_topic,
        "reason": wanted.reason,
        "text": wanted.text,
    }
    found = db.execute(
        'SELECT id, topic, partition, "offset", reason, detail, source, source_topic, "key", size, head '
        "FROM dead_letters WHERE id <= :until AND id < :before AND coalesce(source_topic = :source, 1) "
        "AND coalesce(reason = :reason, 1) "
        'AND (:text IS NULL OR instr(lower(detail || char(10) || "key" || char(10) || head), lower(:text))) '
        "ORDER BY id DESC LIMIT :rows",
        values,
    )
    return row_page(found, ask, lambda row: DeadLetterRow(Place(*row[1:4]), time_of(row[0]), *row[4:]))


def task(db: sqlite3.Connection, task_id: str, *, until: float | None = None) -> TaskTimeline | None:
    """Return the whole way of a task, with its groups side by side; None: nothing is known of it."""
    values = {"task_id": task_id, "at": _ms(until), "until": last_number(until), "rows": MAX_LIMIT}
    sent = db.execute(
        'SELECT at, partition, "offset", workflow, batch_id, batch_type, producer, prompt, answer FROM tasks '
        "WHERE task_id = :task_id AND at <= :at ORDER BY at LIMIT 1",
        values,
    ).fetchone()
    result = db.execute(
        'SELECT at, partition, "offset", status, error, batch_id, batch_type FROM results '
        "WHERE task_id = :task_id AND at <= :at ORDER BY at LIMIT 1",
        values,
    ).fetchone()
    groups = groups_of_task(db, task_id, until)
    events = _events(db, values, groups)
    if sent is not None:
        events.append(TaskEvent(sent[0] / 1000, "sent", None, sent[6], "", Place("tasks", *sent[1:3])))
    if result is not None:
        text = result[3] if result[4] is None else f"{result[3]}: {result[4]}"
        events.append(TaskEvent(result[0] / 1000, "result", None, None, text, Place("results", *result[1:3])))
    if not events:
        return None
    workflow, batch_id, batch_type, producer, prompt, answer = (None,) * 6 if sent is None else sent[3:]
    if groups:
        last = groups[-1]
        workflow, batch_id, batch_type = last.workflow, last.batch_id, last.batch_type
        prompt = last.prompt if prompt is None else prompt
    status = error = None
    if result is not None:
        # A task may leave its batch to the coordinator, whose result says it.
        status, error, batch_id, batch_type = result[3:]
    return TaskTimeline(
        task_id=task_id,
        workflow=workflow,
        batch_id=batch_id,
        batch_type=batch_type,
        producer=producer,
        prompt=prompt,
        answer=answer,
        status=status,
        error=error,
        events=sorted(events, key=lambda event: event.at)[:MAX_LIMIT],
        groups=groups,
    )


def _events(db: sqlite3.Connection, values: dict[str, Any], groups: list[GroupRow]) -> list[TaskEvent]:
    events = [
        TaskEvent(at / 1000, kind, attempt, who, text, Place(*place))
        for at, kind, attempt, who, text, *place in db.execute(
            'SELECT at, kind, attempt, who, text, topic, partition, "offset" FROM events '
            "WHERE task_id = :task_id AND at <= :at ORDER BY at LIMIT :rows",
            values,
        )
    ]
    for one in groups:
        text = counted(one.samples, "sample")
        place = Place("experiences", one.partition, one.offset)
        events.append(TaskEvent(one.at, "experience", one.attempt, one.explorer, text, place))
        for number, offset, trainer, step in db.execute(
            'SELECT b.id, b."offset", b.trainer, b.step FROM step_groups u JOIN begun b ON b."offset" = u.begun '
            'WHERE u.partition = :partition AND u."offset" = :offset AND b.id <= :until LIMIT :rows',
            values | {"partition": one.partition, "offset": one.offset},
        ):
            begun = Place("steps", 0, offset)
            events.append(TaskEvent(time_of(number), "begun", one.attempt, trainer, f"step {step}", begun))
    for number, topic, partition, offset, reason, detail in db.execute(
        'SELECT id, topic, partition, "offset", reason, detail FROM dead_letters WHERE "key" = :task_id '
        "AND id <= :until LIMIT :rows",
        values,
    ):
        place = Place(topic, partition, offset)
        events.append(TaskEvent(time_of(number), "dead_letter", None, None, f"{reason}: {detail}", place))
    return events
