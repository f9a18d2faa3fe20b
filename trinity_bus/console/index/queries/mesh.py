"""The mesh as a whole: how much there is, charts, explorers, dead letters, and the way of one task."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Final

from trinity_bus.console.index import answers
from trinity_bus.console.index.queries.conditions import Whose, page_values, row_page, whose
from trinity_bus.console.index.queries.groups import groups_of_task
from trinity_bus.console.index.questions import FIRST_PAGE, MAX_LIMIT, Axis, PageAsk
from trinity_bus.console.index.schema import MAX_AT, SLOT_BITS, last_number, time_of

_MINUTE_S: Final = 60
_AXES: Final = {"step": "step", "time": "at / 1000.0"}
_NAMES: Final = (
    "WITH RECURSIVE n (name) AS (SELECT min(name) FROM points UNION ALL "
    "SELECT (SELECT min(name) FROM points WHERE points.name > n.name) FROM n WHERE n.name IS NOT NULL) "
    "SELECT name FROM n WHERE name IS NOT NULL LIMIT 10000"
)


def _ms(until: float | None) -> int:
    return MAX_AT if until is None else int(min(max(until * 1000, 0), MAX_AT))


def extent(db: sqlite3.Connection, *, until: float | None = None) -> answers.Extent:
    at = _ms(until)
    minute = (at // (1000 * _MINUTE_S),)
    samples, *ends = db.execute(
        "SELECT coalesce(sum(samples), 0), min(minute), max(minute) FROM minutes WHERE minute <= ?", minute
    ).fetchone()
    # Heartbeats come before the first sample, and go on behind the last.
    ends += db.execute("SELECT min(minute), max(minute) FROM fleet WHERE minute <= ?", minute).fetchone()
    query = "SELECT count(*) FROM dead_letters WHERE id <= ?"
    (dead_letters,) = db.execute(query, (last_number(until),)).fetchone()
    minutes = [one for one in ends if one is not None]
    return answers.Extent(
        first_at=float(min(minutes) * _MINUTE_S) if minutes else None,
        last_at=min(float((max(minutes) + 1) * _MINUTE_S), at / 1000) if minutes else None,
        samples=samples,
        dead_letters=dead_letters,
    )


def passed_over(db: sqlite3.Connection) -> answers.PassedOver:
    found = db.execute("SELECT topic, sum(unreadable), sum(lost) FROM offsets GROUP BY topic").fetchall()
    unreadable = {topic: count for topic, count, _ in found if count}
    return answers.PassedOver(unreadable, sum(lost for *_, lost in found))


def metric_names(db: sqlite3.Connection) -> list[str]:
    """Return the names of all metrics of steps and of batches."""
    return [name for (name,) in db.execute(_NAMES)]


def metrics(
    db: sqlite3.Connection,
    names: Sequence[str],
    *,
    by: Axis = "step",
    points: int = 500,
    trainer: str | None = None,
    until: float | None = None,
) -> dict[str, list[answers.Point]]:
    """Return the points of each name, for charts: at most so many, in the order of the axis.

    Of steps they are those of a trainer's last run; None: of the first of ``trainers``.
    """
    of = whose(db, trainer, until)
    return {name: _series(db, name, by=by, points=points, of=of, until=until) for name in names}


def _series(
    db: sqlite3.Connection, name: str, *, by: Axis, points: int, of: Whose, until: float | None
) -> list[answers.Point]:
    # Figures of batches are of no trainer.
    source = (
        f"SELECT {_AXES[by]} AS x, value FROM points WHERE name = :name AND at <= :until "
        "AND (trainer = :trainer AND at >= :since_ms OR trainer IS NULL AND :of_batches)"
    )
    values = {"name": name, "until": _ms(until), "points": points, "trainer": of.trainer}
    values |= {"since_ms": of.since >> SLOT_BITS, "of_batches": of.of_batches}
    low, high = db.execute(f"SELECT min(x), max(x) FROM ({source})", values).fetchone()
    if low is None:
        return []
    # Points that share a place of the axis become one; the last place takes the end of it too.
    values |= {"low": low, "width": max((high - low) / points, 1e-9)}
    found = db.execute(
        f"SELECT avg(x), avg(value), count(*) FROM ({source}) "
        "GROUP BY min(CAST((x - :low) / :width AS INTEGER), :points - 1) ORDER BY 1",
        values,
    )
    return [answers.Point(*row) for row in found]


def fleet(db: sqlite3.Connection, *, until: float | None = None) -> list[answers.ExplorerRow]:
    """Return the explorers as they last said, by name, those too that were long silent."""
    found = db.execute(
        "SELECT f.explorer, f.at / 1000.0, f.state, f.version, f.slots, f.running, "
        "iif(f.at > e.at, (f.tokens - e.tokens) * 1000.0 / (f.at - e.at), NULL), f.pool "
        "FROM fleet f LEFT JOIN fleet e ON e.explorer = f.explorer AND e.incarnation = f.incarnation AND e.minute = "
        "(SELECT max(minute) FROM fleet WHERE explorer = f.explorer AND minute < f.minute) "
        "WHERE f.minute = (SELECT max(minute) FROM fleet WHERE explorer = f.explorer AND minute <= :minute) "
        "ORDER BY f.explorer LIMIT :rows",
        {"minute": _ms(until) // (1000 * _MINUTE_S), "rows": 2 * MAX_LIMIT},
    )
    return [answers.ExplorerRow(*row) for row in found]


def settings(
    db: sqlite3.Connection, *, service: str | None = None, until: float | None = None
) -> list[answers.SettingsRow]:
    """Return what each service was started with last, by service and name."""
    found = db.execute(
        "SELECT max(id), service, name, told FROM settings WHERE id <= ? AND coalesce(service = ?, 1) "
        "GROUP BY service, name ORDER BY service, name LIMIT ?",
        (last_number(until), service, MAX_LIMIT),
    )
    return [
        answers.SettingsRow(service, name, time_of(number), json.loads(told)) for number, service, name, told in found
    ]


def dead_letters(
    db: sqlite3.Connection,
    ask: PageAsk = FIRST_PAGE,
    *,
    source_topic: str | None = None,
    reason: str | None = None,
    text: str | None = None,
    until: float | None = None,
) -> answers.RowPage[answers.DeadLetterRow]:
    """Return records that could not be taken, the newest first; ``text`` is in detail, key or beginning."""
    asked = {"source_topic": source_topic, "reason": reason, "text": text}
    found = db.execute(
        'SELECT id, topic, partition, "offset", reason, detail, source, "key" '
        "FROM dead_letters WHERE id <= :until AND id < :before AND coalesce(source_topic = :source_topic, 1) "
        "AND coalesce(reason = :reason, 1) "
        'AND (:text IS NULL OR instr(lower(detail || char(10) || "key" || char(10) || head), lower(:text))) '
        "ORDER BY id DESC LIMIT :rows",
        {"until": last_number(until), **page_values(ask), **asked},
    )
    return row_page(found, ask, lambda row: answers.DeadLetterRow(answers.Place(*row[1:4]), time_of(row[0]), *row[4:]))


# All that is on the log of a task: the time in milliseconds, and what a ``TaskEvent`` is made of
_EVENTS: Final = (
    'SELECT at, kind, attempt, who, text, topic, partition, "offset" FROM ('
    "SELECT min(at) AS at, 'sent' AS kind, NULL AS attempt, producer AS who, '' AS text, 'tasks' AS topic, partition, "
    '"offset" FROM tasks WHERE task_id = :task_id '
    'UNION ALL SELECT at, kind, attempt, who, text, topic, partition, "offset" FROM events WHERE task_id = :task_id '
    f"UNION ALL SELECT g.id >> {SLOT_BITS}, 'experience', g.attempt, g.explorer, "
    "printf('%,d sample%s', g.samples, iif(g.samples = 1, '', 's')), 'experiences', g.partition, g.\"offset\" "
    "FROM groups g WHERE g.task_id = :task_id "
    f"UNION ALL SELECT b.id >> {SLOT_BITS}, 'begun', g.attempt, b.trainer, 'step ' || b.step, 'steps', 0, b.\"offset\" "
    'FROM groups g JOIN step_groups u ON u.partition = g.partition AND u."offset" = g."offset" '
    'JOIN begun b ON b."offset" = u.begun WHERE g.task_id = :task_id '
    "UNION ALL SELECT min(at), 'result', NULL, NULL, status || coalesce(': ' || error, ''), 'results', partition, "
    '"offset" FROM results WHERE task_id = :task_id '
    f"UNION ALL SELECT id >> {SLOT_BITS}, 'dead_letter', NULL, NULL, reason || ': ' || detail, topic, partition, "
    '"offset" FROM dead_letters WHERE "key" = :task_id'
    ") WHERE at <= :at ORDER BY at LIMIT :rows"
)


def task(db: sqlite3.Connection, task_id: str, *, until: float | None = None) -> answers.TaskTimeline | None:
    """Return the whole way of a task, with its groups side by side; None: nothing is known of it."""
    values = {"task_id": task_id, "at": _ms(until), "rows": MAX_LIMIT}
    events = [
        answers.TaskEvent(at / 1000, kind, attempt, who, text, answers.Place(*place))
        for at, kind, attempt, who, text, *place in db.execute(_EVENTS, values)
    ]
    if not events:
        return None
    first = "WHERE task_id = :task_id AND at <= :at ORDER BY at LIMIT 1"
    sent = db.execute(f"SELECT workflow, batch_id, producer, prompt, answer FROM tasks {first}", values).fetchone()
    workflow, batch_id, producer, prompt, answer = sent or (None,) * 5
    result = db.execute(f"SELECT status, error, batch_id FROM results {first}", values).fetchone()
    groups = groups_of_task(db, task_id, until)
    if groups:
        workflow, batch_id = groups[-1].workflow, groups[-1].batch_id
        prompt = groups[-1].prompt if prompt is None else prompt
    # A task may leave its batch to the coordinator, whose result says it.
    status, error, batch_id = result or (None, None, batch_id)
    return answers.TaskTimeline(
        task_id=task_id,
        workflow=workflow,
        batch_id=batch_id,
        producer=producer,
        prompt=prompt,
        answer=answer,
        status=status,
        error=error,
        events=events,
        groups=groups,
    )
