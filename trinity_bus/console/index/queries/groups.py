"""Groups, and one sample with what became of it."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from schemas.step import LeftOut
from schemas.topics import TOKEN_FIGURES
from trinity_bus.console.index import answers
from trinity_bus.console.index.queries.conditions import (
    EQUAL_RUNS,
    GROUPS_OF_STEP,
    OF_LAST_RUN,
    of_groups,
    page_values,
    row_page,
    values_of,
)
from trinity_bus.console.index.questions import ALL_SAMPLES, FIRST_PAGE, MAX_LIMIT, PageAsk, SampleFilter
from trinity_bus.console.index.schema import (
    PROMPT,
    SAMPLE_BITS,
    last_number,
    number_in_group,
    sample_number,
    time_in_sql,
    time_of,
)

MAX_GROUPS: Final = 500  # Attempts of one task, and steps of one sample, that are told of

# Of a step that a trainer has begun twice the last record counts; another run's is not to be looked at any more
_LAST_WORD: Final = (
    f"{OF_LAST_RUN} AND NOT EXISTS (SELECT 1 FROM begun c WHERE c.step = b.step AND c.trainer = b.trainer "
    "AND c.run = b.run AND c.id > b.id AND c.id <= :until)"
)
# A number, and what a ``GroupRow`` is made of
_GROUP: Final = (
    f'g.id, g.partition, g."offset", {time_in_sql("g.id")}, g.task_id, g.attempt, g.batch_id, g.batch_type, '
    "g.workflow, g.model, g.explorer, g.samples, g.reward_mean, g.reward_min, g.reward_max, "
    "g.version_min, g.version_max, g.prompt_tokens, g.response_tokens, "
    f"(SELECT head FROM texts WHERE texts.id = g.id << {SAMPLE_BITS} | {PROMPT}), g.trace_id, {EQUAL_RUNS}, "
    "(SELECT json_group_array(DISTINCT json_array(b.step, b.trainer, b.follows)) FROM step_groups u JOIN begun b "
    'ON b."offset" = u.begun WHERE u.partition = g.partition AND u."offset" = g."offset" AND b.id <= :until '
    f"AND {_LAST_WORD})"
)
# A number, and what a ``SampleRow`` is made of but its text, which is looked up for those alone that are shown
SAMPLE: Final = (
    f's.id, g.partition, g."offset", {time_in_sql("g.id")}, g.task_id, s.run_id, s.reward, '
    "s.version_min, s.version_max, s.prompt_tokens, s.response_tokens, s.logprob, s.finish_reason"
)

# The steps that were begun with a record of a group, those of live trainers first
_BEGUN_WITH: Final = (
    'SELECT b."offset", b.step, b.trainer, b.follows, b.id, u.replayed, u.first, b.run FROM step_groups u '
    'JOIN begun b ON b."offset" = u.begun WHERE u.partition = :partition AND u."offset" = :offset '
    f"AND b.id <= :until AND {_LAST_WORD} ORDER BY b.follows IS NOT NULL, b.id LIMIT :most"
)
# Where the parts of a group lie of which one lies there; none before its task has a result
_PARTS: Final = (
    'SELECT w.partition, w."offset" FROM parts o JOIN parts w ON w.task_id = o.task_id '
    'WHERE o.partition = :partition AND o."offset" = :offset ORDER BY w.first'
)
# Where a step's figures of a sample's tokens lie; of a step that was trained twice, the last
_FIGURES: Final = (
    'SELECT partition, "offset" FROM token_figures WHERE group_partition = :partition AND group_offset = :offset '
    "AND trainer = :trainer AND run = :run AND step = :step AND :number BETWEEN first AND last AND id <= :until "
    "ORDER BY id DESC LIMIT 1"
)


def groups(
    db: sqlite3.Connection, wanted: SampleFilter = ALL_SAMPLES, ask: PageAsk = FIRST_PAGE, *, until: float | None = None
) -> answers.RowPage[answers.GroupRow]:
    """Return groups, the newest first.

    What the filter says of single samples (rewards, versions) need hold of some of them; texts
    are not looked at.
    """
    source = "groups g" if wanted.step is None else GROUPS_OF_STEP
    values = values_of(db, wanted, until) | page_values(ask)
    conditions = of_groups(replace(wanted, step=None))
    query = (
        f"SELECT {_GROUP} FROM {source} WHERE g.id <= :until AND g.id < :before {conditions} "
        "ORDER BY g.id DESC LIMIT :rows"
    )
    return row_page(db.execute(query, values), ask, _group_of)


def groups_of_task(db: sqlite3.Connection, task_id: str, until: float | None) -> list[answers.GroupRow]:
    return groups(db, SampleFilter(task_id=task_id), PageAsk(limit=MAX_GROUPS), until=until).rows[::-1]


def sample(
    db: sqlite3.Connection, place: answers.SamplePlace, *, until: float | None = None
) -> answers.SampleDetail | None:
    """Return one sample; None: there is none. Its tokens are on the log: see ``PastRecords``."""
    values = {"partition": place.partition, "offset": place.offset, "until": last_number(until)}
    query = f'SELECT {_GROUP} FROM groups g WHERE g.partition = :partition AND g."offset" = :offset'
    found = db.execute(f"{query} AND g.id <= :until", values).fetchone()
    if found is None or not 0 <= place.number < found[11]:
        return None
    number = sample_number(found[0], place.number)
    query = f"SELECT {SAMPLE} FROM samples s JOIN groups g ON g.id = s.id >> {SAMPLE_BITS} WHERE s.id = ?"
    return answers.SampleDetail(
        row=sample_rows(db, db.execute(query, (number,)).fetchall())[0],
        group=_group_of(found),
        fates=_fates(db, place, found[4], values),
    )


def sample_rows(db: sqlite3.Connection, found: Sequence[tuple[Any, ...]]) -> list[answers.SampleRow]:
    rows = []
    for number, partition, offset, *values in found:
        head = db.execute("SELECT head FROM texts WHERE id = ?", (number,)).fetchone()
        place = answers.SamplePlace(partition, offset, number_in_group(number))
        rows.append(answers.SampleRow(place, *(*values, head and head[0])))
    return rows


def whole_group(
    db: sqlite3.Connection, partition: int, offset: int, *, until: float | None = None
) -> answers.WholeGroup | None:
    """Return all parts of the group that a record is of, and the steps that were begun with it; None: no record."""
    values = {"partition": partition, "offset": offset, "until": last_number(until)}
    places = db.execute(f"{_PARTS} LIMIT {MAX_GROUPS}", values).fetchall() or [(partition, offset)]
    query = f'SELECT {_GROUP} FROM groups g WHERE g.partition = :partition AND g."offset" = :offset AND g.id <= :until'
    found = [db.execute(query, values | {"partition": at[0], "offset": at[1]}).fetchone() for at in places]
    parts = [_group_of(row) for row in found if row is not None]
    if not any((part.partition, part.offset) == (partition, offset) for part in parts):
        return None
    uses = [answers.GroupUse(*use[:3]) for use in _begun_with(db, values, parts[0].task_id)]
    return answers.WholeGroup(parts=parts, missing=len(places) - len(parts), uses=uses)


def left_out(db: sqlite3.Connection, begun: int, task_id: str | None = None) -> list[LeftOut]:
    """Return what a step leaves out, of one task or of all; the first ``MAX_LIMIT``."""
    query = (
        "SELECT task_id, reason, samples, detail FROM left_out WHERE begun = ? AND coalesce(task_id = ?, 1) "
        "ORDER BY rowid LIMIT ?"
    )
    return [
        LeftOut(task_id=task, reason=reason, samples=json.loads(samples), detail=detail)
        for task, reason, samples, detail in db.execute(query, (begun, task_id, MAX_LIMIT))
    ]


type _Use = tuple[answers.StepName, float, list[LeftOut], bool, int, str]


def _begun_with(db: sqlite3.Connection, values: dict[str, Any], task_id: str) -> list[_Use]:
    # The steps that were begun with a record of a group: when, what they leave out of it, whether it is replayed, the
    # place of its first sample in the whole group, and of which run they are
    return [
        (answers.StepName(step, trainer, follows), time_of(number), left_out(db, key, task_id), bool(again), first, run)
        for key, step, trainer, follows, number, again, first, run in db.execute(
            _BEGUN_WITH, values | {"most": MAX_GROUPS}
        ).fetchall()
    ]


def _group_of(row: tuple[Any, ...]) -> answers.GroupRow:
    _, *values, equal, steps = row
    return answers.GroupRow(
        *(*values, bool(equal), sorted((answers.StepName(*step) for step in json.loads(steps)), key=_live_first))
    )


def _live_first(step: answers.StepName) -> tuple[bool, int, str]:
    return step.follows is not None, step.step, step.trainer


def _fates(
    db: sqlite3.Connection, place: answers.SamplePlace, task_id: str, values: dict[str, Any]
) -> list[answers.SampleUse]:
    found = []
    for step, at, rows, replayed, first, run in _begun_with(db, values, task_id):
        why = next((one for one in reversed(rows) if first + place.number in one.samples), None)
        reason, detail = (None, "") if why is None else (why.reason, why.detail)
        of_step = {"trainer": step.trainer, "run": run, "step": step.step, "number": place.number}
        figures = db.execute(_FIGURES, values | of_step).fetchone()
        told = None if figures is None else answers.Place(TOKEN_FIGURES.name, *figures)
        found.append(answers.SampleUse(step, at, replayed, reason, detail, told))
    return found
