"""Batches, steps and versions: what became of tasks."""

import json
import sqlite3
from typing import Any, Final

from schemas.record import BatchType
from trinity_bus.console.index import answers
from trinity_bus.console.index.queries.conditions import OF_LAST_RUN, page_values, row_page, whose
from trinity_bus.console.index.queries.groups import left_out
from trinity_bus.console.index.questions import FIRST_PAGE, MAX_LIMIT, PageAsk
from trinity_bus.console.index.schema import last_number, time_in_sql, time_of

_BEGAN: Final = (
    "FROM begun b WHERE b.batch_id = a.batch_id AND b.follows IS NULL AND b.id <= :until "
    f"AND {OF_LAST_RUN} ORDER BY b.id DESC LIMIT 1"
)
# A number, and what a ``BatchRow`` is made of
_BATCH: Final = (
    "a.id, a.batch_id, a.batch_type, a.state, a.sequence, a.expected, a.accepted, a.completed, a.failed, a.aborted, "
    f"a.min_version, a.reward, a.reason, {time_in_sql('a.id')}, "
    f"(SELECT b.step {_BEGAN}), (SELECT b.trainer {_BEGAN})"
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
_STEP_FIELDS: Final = len(answers.StepRow.__struct_fields__)  # So many values of it make a ``StepRow``
# A number, what a ``PublishedRow`` is made of, and the batches that the version before tells of
_VERSION: Final = (
    f"v.id, v.version, v.step, v.batch_id, {time_in_sql('v.id')}, v.trainer, v.checksum, "
    "v.checkpoint, v.seconds, v.rolled_back_to, v.rolled_back_by, v.rolled_back_why, "
    "coalesce(a.version = v.version, 0), coalesce(a.version = v.version AND a.pinned, 0), "
    "(SELECT count(DISTINCT explorer) FROM syncs s WHERE s.version = v.version AND s.model = v.model AND s.ok "
    "AND s.id <= :until), v.metrics, v.skipped, (SELECT w.skipped FROM versions w WHERE w.version = v.version - 1 "
    "AND w.model = v.model AND w.id <= :until ORDER BY w.id DESC LIMIT 1)"
)
_MOST_SYNCS: Final = 10_000
_ANNOUNCED: Final = (
    "LEFT JOIN announced a ON a.id = (SELECT id FROM announced WHERE model = v.model AND id <= :until "
    "ORDER BY id DESC LIMIT 1)"
)


def batches(
    db: sqlite3.Connection,
    ask: PageAsk = FIRST_PAGE,
    *,
    batch_type: BatchType | None = None,
    until: float | None = None,
) -> answers.RowPage[answers.BatchRow]:
    """Return batches, those that changed last first."""
    values = {"until": last_number(until), **page_values(ask), "batch_type": batch_type}
    query = (
        f"SELECT {_BATCH} FROM batches a WHERE a.id <= :until AND a.id < :before AND {_LATEST_BATCH} "
        "AND coalesce(a.batch_type = :batch_type, 1) ORDER BY a.id DESC LIMIT :rows"
    )
    return row_page(db.execute(query, values), ask, lambda row: answers.BatchRow(*row[1:]))


def batch(db: sqlite3.Connection, batch_id: str, *, until: float | None = None) -> answers.BatchDetail | None:
    """Return one batch; None: there is none. Its groups and samples are asked for by ``SampleFilter``."""
    values = {"until": last_number(until), "batch_id": batch_id, "rows": MAX_LIMIT}
    found = db.execute(
        f"SELECT {_BATCH}, a.metrics FROM batches a WHERE a.batch_id = :batch_id AND a.id <= :until "
        "ORDER BY a.id DESC LIMIT :rows",
        values,
    ).fetchall()
    if not found:
        return None
    *newest, metrics = found[0]
    transitions = [(row[3], time_of(row[0])) for row in reversed(found)]
    return answers.BatchDetail(answers.BatchRow(*newest[1:]), transitions, json.loads(metrics))


def steps(
    db: sqlite3.Connection, ask: PageAsk = FIRST_PAGE, *, trainer: str | None = None, until: float | None = None
) -> answers.RowPage[answers.StepRow]:
    """Return steps of a trainer's last run, the newest first; of one that was begun again, the last time."""
    values = {"until": last_number(until), **page_values(ask), **whose(db, trainer, until).values}
    known = " UNION ".join(
        f"SELECT DISTINCT step FROM {table} WHERE step < :before AND step > 0 AND {_THEIRS}"
        for table in ("begun", "trained")
    )
    query = f"WITH n AS ({known} ORDER BY step DESC LIMIT :rows) {_STEP} ORDER BY n.step DESC"
    return row_page(db.execute(query, values), ask, lambda row: answers.StepRow(*row[:_STEP_FIELDS]))


def step(
    db: sqlite3.Connection, number: int, *, trainer: str | None = None, until: float | None = None
) -> answers.StepDetail | None:
    values = {"until": last_number(until), "step": number, **whose(db, trainer, until).values}
    row = db.execute(f"WITH n AS (SELECT :step AS step) {_STEP}", values).fetchone()
    if row[1] is None:
        return None
    *_, metrics, checksum, key = row
    row = answers.StepRow(*row[:_STEP_FIELDS])
    return answers.StepDetail(row, json.loads(metrics or "{}"), left_out(db, key), checksum)


def versions(
    db: sqlite3.Connection, ask: PageAsk = FIRST_PAGE, *, model: str | None = None, until: float | None = None
) -> answers.RowPage[answers.PublishedRow]:
    """Return the versions that were published, the newest first."""
    values = {"until": last_number(until), **page_values(ask), "model": model}
    query = (
        f"SELECT {_VERSION} FROM versions v {_ANNOUNCED} WHERE v.id <= :until AND v.id < :before "
        "AND coalesce(v.model = :model, 1) ORDER BY v.id DESC LIMIT :rows"
    )
    return row_page(db.execute(query, values), ask, _version_of)


def choices(db: sqlite3.Connection, model: str, *, rows: int, until: float | None = None) -> list[answers.ChoiceRow]:
    """Return who chose which version to be served, and when, the newest choice first."""
    # A choice is announced anew for each explorer that comes late: the first announcement is its time.
    found = db.execute(
        "SELECT id, version, pinned, asked_by FROM (SELECT id, version, pinned, asked_by, "
        "lag(version) OVER o IS version AND lag(pinned) OVER o IS pinned AND lag(asked_by) OVER o IS asked_by AS again "
        "FROM announced WHERE model = :model AND id <= :until AND (pinned OR asked_by IS NOT NULL) "
        "WINDOW o AS (ORDER BY id)) WHERE NOT again ORDER BY id DESC LIMIT :rows",
        {"model": model, "until": last_number(until), "rows": rows},
    )
    return [answers.ChoiceRow(time_of(number), version, bool(pinned), who) for number, version, pinned, who in found]


def syncs(db: sqlite3.Connection, first: int, *, until: float | None = None) -> list[answers.SyncRow]:
    """Return how explorers took a version and those after it, in the order of time; of very many the newest."""
    found = db.execute(
        "SELECT id, explorer, version, ok, transfer_s, pause_s FROM syncs WHERE version >= ? AND id <= ? "
        "ORDER BY id DESC LIMIT ?",
        (first, last_number(until), _MOST_SYNCS),
    ).fetchall()
    return [
        answers.SyncRow(time_of(at), name, version, bool(ok), *took) for at, name, version, ok, *took in found[::-1]
    ]


def _version_of(row: tuple[Any, ...]) -> answers.PublishedRow:
    _, *values, announced, pinned, synced, metrics, skipped, before = row
    # Each version tells of all that was passed over on the way to it.
    told = json.loads(before or "[]")
    own = [batch_id for batch_id in json.loads(skipped) if batch_id not in told]
    return answers.PublishedRow(*(*values, bool(announced), bool(pinned), synced, json.loads(metrics), own))
