"""The mesh as a whole: batches, steps and versions, charts, explorers, dead letters, and the way of one task."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from schemas import BatchRecord, PublishedVersion
from schemas.codec import decode
from schemas.record import BatchType
from trinity_bus.console.index import terms
from trinity_bus.console.index.queries.samples import (
    OF_LAST_RUN,
    Whose,
    groups_of_task,
    left_out,
    page_values,
    row_page,
    whose,
)
from trinity_bus.console.index.schema import MAX_AT, SLOT_BITS, last_number, time_in_sql, time_of

_BEGAN: Final = (
    "FROM begun b WHERE b.batch_id = a.batch_id AND b.follows IS NULL AND b.id <= :until "
    f"AND {OF_LAST_RUN} ORDER BY b.id DESC LIMIT 1"
)
# A number, and what a ``BatchRow`` is made of
_BATCH: Final = (
    f"a.id, a.record, a.reward, {time_in_sql('a.id')}, (SELECT b.step {_BEGAN}), (SELECT b.trainer {_BEGAN})"
)
_LATEST_BATCH: Final = (
    "NOT EXISTS (SELECT 1 FROM batches c WHERE c.batch_id = a.batch_id AND c.id > a.id AND c.id <= :until)"
)
_THEIRS: Final = "trainer = :trainer AND id BETWEEN :since AND :until"
_BEGUN: Final = f"(SELECT id FROM begun WHERE step = n.step AND {_THEIRS} ORDER BY id DESC LIMIT 1)"
_TRAINED: Final = f"(SELECT id FROM trained WHERE step = n.step AND {_THEIRS} ORDER BY id DESC LIMIT 1)"
_STEP: Final = (
    "SELECT n.step, coalesce(b.model, t.model), coalesce(b.trainer, t.trainer), b.run, "
    f"coalesce(b.batch_id, t.batch_id), b.sequence, {time_in_sql('b.id')}, {time_in_sql('t.id')}, t.seconds, "
    "coalesce(b.groups, 0), coalesce(b.samples, 0), coalesce(b.left_out, 0), coalesce(b.replayed, 0), "
    "coalesce(b.examples, 0), b.skipped, coalesce(b.follows, t.follows), "
    "(SELECT a.reward FROM batches a WHERE a.batch_id = coalesce(b.batch_id, t.batch_id) AND a.reward IS NOT NULL "
    "AND a.id <= :until ORDER BY a.id DESC LIMIT 1), "
    't.metrics, t.checksum, b."offset" FROM n '
    f"LEFT JOIN begun b ON b.id = {_BEGUN} LEFT JOIN trained t ON t.id = {_TRAINED} AND t.id > coalesce(b.id, 0)"
)
_STEP_FIELDS: Final = len(terms.StepRow.__struct_fields__)  # So many values of it make a ``StepRow``
# A number, what a ``PublishedRow`` is made of, and the batches that the version before tells of
_VERSION: Final = (
    f"v.id, v.record, {time_in_sql('v.id')}, "
    "coalesce(a.version = v.version, 0), coalesce(a.version = v.version AND a.pinned, 0), "
    "(SELECT count(DISTINCT explorer) FROM syncs s WHERE s.version = v.version AND s.model = v.model AND s.ok "
    "AND s.id <= :until), v.skipped, (SELECT w.skipped FROM versions w WHERE w.version = v.version - 1 "
    "AND w.model = v.model AND w.id <= :until ORDER BY w.id DESC LIMIT 1)"
)
_MOST_SYNCS: Final = 10_000
_ANNOUNCED: Final = (
    "LEFT JOIN announced a ON a.id = (SELECT id FROM announced WHERE model = v.model AND id <= :until "
    "ORDER BY id DESC LIMIT 1)"
)


def batches(
    db: sqlite3.Connection,
    ask: terms.PageAsk = terms.FIRST_PAGE,
    *,
    batch_type: BatchType | None = None,
    until: float | None = None,
) -> terms.RowPage[terms.BatchRow]:
    """Return batches, those that changed last first."""
    values = {"until": last_number(until), **page_values(ask), "batch_type": batch_type}
    query = (
        f"SELECT {_BATCH} FROM batches a WHERE a.id <= :until AND a.id < :before AND {_LATEST_BATCH} "
        "AND coalesce(a.batch_type = :batch_type, 1) ORDER BY a.id DESC LIMIT :rows"
    )
    return row_page(db.execute(query, values), ask, _batch_of)


def batch(db: sqlite3.Connection, batch_id: str, *, until: float | None = None) -> terms.BatchDetail | None:
    """Return one batch; None: there is none. Its groups and samples are asked for by ``SampleFilter``."""
    values = {"until": last_number(until), "batch_id": batch_id, "rows": terms.MAX_LIMIT}
    found = db.execute(
        f"SELECT {_BATCH} FROM batches a WHERE a.batch_id = :batch_id AND a.id <= :until "
        "ORDER BY a.id DESC LIMIT :rows",
        values,
    ).fetchall()
    if not found:
        return None
    rows = [_batch_of(row) for row in found]
    return terms.BatchDetail(rows[0], [(row.record.state, row.changed_at) for row in reversed(rows)])


def _batch_of(row: tuple[Any, ...]) -> terms.BatchRow:
    return terms.BatchRow(decode(row[1], BatchRecord), *row[2:])


def steps(
    db: sqlite3.Connection,
    ask: terms.PageAsk = terms.FIRST_PAGE,
    *,
    trainer: str | None = None,
    until: float | None = None,
) -> terms.RowPage[terms.StepRow]:
    """Return steps of a trainer's last run, the newest first; of one that was begun again, the last time."""
    values = {"until": last_number(until), **page_values(ask), **whose(db, trainer, until).values}
    known = " UNION ".join(
        f"SELECT DISTINCT step FROM {table} WHERE step < :before AND step > 0 AND {_THEIRS}"
        for table in ("begun", "trained")
    )
    query = f"WITH n AS ({known} ORDER BY step DESC LIMIT :rows) {_STEP} ORDER BY n.step DESC"
    return row_page(db.execute(query, values), ask, lambda row: terms.StepRow(*row[:_STEP_FIELDS]))


def step(
    db: sqlite3.Connection, number: int, *, trainer: str | None = None, until: float | None = None
) -> terms.StepDetail | None:
    values = {"until": last_number(until), "step": number, **whose(db, trainer, until).values}
    row = db.execute(f"WITH n AS (SELECT :step AS step) {_STEP}", values).fetchone()
    if row[1] is None:
        return None
    *_, metrics, checksum, key = row
    row = terms.StepRow(*row[:_STEP_FIELDS])
    return terms.StepDetail(row, json.loads(metrics or "{}"), left_out(db, key), checksum)


def versions(
    db: sqlite3.Connection,
    ask: terms.PageAsk = terms.FIRST_PAGE,
    *,
    model: str | None = None,
    until: float | None = None,
) -> terms.RowPage[terms.PublishedRow]:
    """Return the versions that were published, the newest first."""
    values = {"until": last_number(until), **page_values(ask), "model": model}
    query = (
        f"SELECT {_VERSION} FROM versions v {_ANNOUNCED} WHERE v.id <= :until AND v.id < :before "
        "AND coalesce(v.model = :model, 1) ORDER BY v.id DESC LIMIT :rows"
    )
    return row_page(db.execute(query, values), ask, _version_of)


def syncs(db: sqlite3.Connection, first: int, *, until: float | None = None) -> list[terms.SyncRow]:
    """Return how explorers took a version and those after it, in the order of time; of very many the newest."""
    found = db.execute(
        "SELECT id, explorer, version, ok, transfer_s, pause_s FROM syncs WHERE version >= ? AND id <= ? "
        "ORDER BY id DESC LIMIT ?",
        (first, last_number(until), _MOST_SYNCS),
    ).fetchall()
    return [terms.SyncRow(time_of(at), name, version, bool(ok), *took) for at, name, version, ok, *took in found[::-1]]


def _version_of(row: tuple[Any, ...]) -> terms.PublishedRow:
    _, record, at, announced, pinned, synced, skipped, before = row
    # Each version tells of all that was passed over on the way to it.
    told = json.loads(before or "[]")
    own = [batch_id for batch_id in json.loads(skipped) if batch_id not in told]
    return terms.PublishedRow(decode(record, PublishedVersion), at, bool(announced), bool(pinned), synced, own)


_MINUTE_S: Final = 60
_AXES: Final = {"step": "step", "time": "at / 1000.0"}
_NAMES: Final = (
    "WITH RECURSIVE n (name) AS (SELECT min(name) FROM points UNION ALL "
    "SELECT (SELECT min(name) FROM points WHERE points.name > n.name) FROM n WHERE n.name IS NOT NULL) "
    "SELECT name FROM n WHERE name IS NOT NULL LIMIT 10000"
)


def _ms(until: float | None) -> int:
    return MAX_AT if until is None else int(min(max(until * 1000, 0), MAX_AT))


def extent(db: sqlite3.Connection, *, until: float | None = None) -> terms.Extent:
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
    return terms.Extent(
        first_at=float(min(minutes) * _MINUTE_S) if minutes else None,
        last_at=min(float((max(minutes) + 1) * _MINUTE_S), at / 1000) if minutes else None,
        samples=samples,
        dead_letters=dead_letters,
    )


def passed_over(db: sqlite3.Connection) -> terms.PassedOver:
    found = db.execute("SELECT topic, sum(unreadable), sum(lost) FROM offsets GROUP BY topic").fetchall()
    unreadable = {topic: count for topic, count, _ in found if count}
    return terms.PassedOver(unreadable, sum(lost for *_, lost in found))


def metric_names(db: sqlite3.Connection) -> list[str]:
    """Return the names of all metrics of steps and of batches."""
    return [name for (name,) in db.execute(_NAMES)]


def metrics(
    db: sqlite3.Connection,
    names: Sequence[str],
    *,
    by: terms.Axis = "step",
    points: int = 500,
    trainer: str | None = None,
    until: float | None = None,
) -> dict[str, list[terms.Point]]:
    """Return the points of each name, for charts: at most so many, in the order of the axis.

    Of steps they are those of a trainer's last run; None: of the first of ``trainers``.
    """
    of = whose(db, trainer, until)
    return {name: _series(db, name, by=by, points=points, of=of, until=until) for name in names}


def _series(
    db: sqlite3.Connection, name: str, *, by: terms.Axis, points: int, of: Whose, until: float | None
) -> list[terms.Point]:
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
    return [terms.Point(*row) for row in found]


def fleet(db: sqlite3.Connection, *, until: float | None = None) -> list[terms.ExplorerRow]:
    """Return the explorers as they last said, by name, those too that were long silent."""
    found = db.execute(
        "SELECT f.explorer, f.at / 1000.0, f.state, f.version, f.slots, f.running, "
        "iif(f.at > e.at, (f.tokens - e.tokens) * 1000.0 / (f.at - e.at), NULL), f.pool "
        "FROM fleet f LEFT JOIN fleet e ON e.explorer = f.explorer AND e.incarnation = f.incarnation AND e.minute = "
        "(SELECT max(minute) FROM fleet WHERE explorer = f.explorer AND minute < f.minute) "
        "WHERE f.minute = (SELECT max(minute) FROM fleet WHERE explorer = f.explorer AND minute <= :minute) "
        "ORDER BY f.explorer LIMIT :rows",
        {"minute": _ms(until) // (1000 * _MINUTE_S), "rows": 2 * terms.MAX_LIMIT},
    )
    return [terms.ExplorerRow(*row) for row in found]


def settings(
    db: sqlite3.Connection, *, service: str | None = None, until: float | None = None
) -> list[terms.SettingsRow]:
    """Return what each service was started with last, by service and name."""
    found = db.execute(
        "SELECT max(id), service, name, told FROM settings WHERE id <= ? AND coalesce(service = ?, 1) "
        "GROUP BY service, name ORDER BY service, name LIMIT ?",
        (last_number(until), service, terms.MAX_LIMIT),
    )
    return [
        terms.SettingsRow(service, name, time_of(number), json.loads(told)) for number, service, name, told in found
    ]


def dead_letters(
    db: sqlite3.Connection,
    ask: terms.PageAsk = terms.FIRST_PAGE,
    *,
    source_topic: str | None = None,
    reason: str | None = None,
    text: str | None = None,
    until: float | None = None,
) -> terms.RowPage[terms.DeadLetterRow]:
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
    return row_page(found, ask, lambda row: terms.DeadLetterRow(terms.Place(*row[1:4]), time_of(row[0]), *row[4:]))


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


def task(db: sqlite3.Connection, task_id: str, *, until: float | None = None) -> terms.TaskTimeline | None:
    """Return the whole way of a task, with its groups side by side; None: nothing is known of it."""
    values = {"task_id": task_id, "at": _ms(until), "rows": terms.MAX_LIMIT}
    events = [
        terms.TaskEvent(at / 1000, kind, attempt, who, text, terms.Place(*place))
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
    return terms.TaskTimeline(
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
