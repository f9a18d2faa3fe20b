"""Groups and samples: one with what became of it, and searches; and what the parts of a ``SampleFilter`` are in SQL.

A page ends where the number of its last row says, and the next one goes on below it.

Trainers of several names have steps of the same numbers: stages, shadows, replays. So has one trainer that began anew,
whose steps of the run before are nobody's any more. A question is about one trainer, and the last of its runs: the one
that is asked for, or else the live one that spoke last.

A search goes back from the newest group, in windows. What a group's row says of all its samples (task, batch, versions,
least and greatest reward) spares looking at them; words, steps and rare rewards lead straight to what can match. A
search that finds little stops when its time is up: its page says how far it got, and how to go on. So no question takes
long, however much there is.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from schemas.step import LeftOut
from schemas.topics import TOKEN_FIGURES
from trinity_bus import awake
from trinity_bus.console.index import terms
from trinity_bus.console.index.schema import (
    PROMPT,
    SAMPLE_BITS,
    last_number,
    number_in_group,
    sample_number,
    time_in_sql,
    time_of,
)

_MOST: Final = 500
# Of a step ``b`` that was begun: it is of its trainer's last run, as all that pages of a trainer show
OF_LAST_RUN: Final = (
    "b.run = (SELECT run FROM begun WHERE id = (SELECT max(id) FROM begun WHERE trainer = b.trainer AND id <= :until))"
)
# The last run of each trainer
_RUNS: Final = (
    # From one name to the next by the index: steps are many, and trainers are few.
    "WITH RECURSIVE n (trainer) AS (SELECT (SELECT min(trainer) FROM begun) UNION ALL "
    "SELECT (SELECT min(trainer) FROM begun WHERE trainer > n.trainer) FROM n WHERE n.trainer IS NOT NULL "
    "LIMIT :most) SELECT b.trainer, b.id, b.follows, b.step, b.of_batches, "
    "(SELECT min(id) FROM begun WHERE trainer = b.trainer AND run = b.run), "
    "(SELECT min(id) FROM begun WHERE trainer = b.trainer) FROM n JOIN begun b ON b.id = "
    "(SELECT max(id) FROM begun WHERE trainer = n.trainer AND id <= :until)"
)
_ENDS: Final = (
    "WITH RECURSIVE n (trainer) AS (SELECT (SELECT min(trainer) FROM trained) UNION ALL "
    "SELECT (SELECT min(trainer) FROM trained WHERE trainer > n.trainer) FROM n WHERE n.trainer IS NOT NULL "
    "LIMIT :most) SELECT t.trainer, t.id, t.follows, t.step FROM n JOIN trained t ON t.id = "
    "(SELECT max(id) FROM trained WHERE trainer = n.trainer AND id <= :until AND step > 0)"
)


class Whose(Struct, frozen=True):
    """One run of one trainer."""

    trainer: str | None  # None: nobody has trained
    since: int = 0  # Numbers of its records are not below this one
    of_batches: bool = True  # Whether figures of batches are of its steps

    @property
    def values(self) -> dict[str, str | int | None]:
        return {"trainer": self.trainer, "since": self.since}


def trainers(db: sqlite3.Connection, *, until: float | None = None) -> list[terms.TrainerRow]:
    """Return who has steps: the live trainer that spoke last first, and those that follow one last."""
    return [row for row, _ in _known(db, until)]


def whose(db: sqlite3.Connection, trainer: str | None, until: float | None) -> Whose:
    for row, found in _known(db, until):
        if trainer in {None, row.trainer}:
            return found
    # Of a name that has no steps yet: figures of batches are the live trainer's.
    return Whose(trainer, of_batches=trainer is None)


def _known(db: sqlite3.Connection, until: float | None) -> list[tuple[terms.TrainerRow, Whose]]:
    values = {"until": last_number(until), "most": _MOST}
    runs = {trainer: run for trainer, *run in db.execute(_RUNS, values)}
    ends = {trainer: end for trainer, *end in db.execute(_ENDS, values)}
    found = []
    for trainer in {**runs, **ends}:
        last, follows, step, of_batches, first, oldest = runs.get(trainer, (0, None, 0, True, 0, 0))
        if trainer in ends and ends[trainer][0] > last:
            last, follows, step = ends[trainer]
        # Of a run that nobody was before, the beginning may be gone from the log.
        since = first if first > oldest else 0
        row = terms.TrainerRow(trainer, follows, step, time_of(last))
        found.append((row, Whose(trainer, since, of_batches=bool(of_batches) and follows is None)))
    return sorted(found, key=lambda each: (each[0].follows is not None, -each[0].last_at, each[0].trainer))


# Which record tells what a step was made of: it may have been begun more than once
LATEST_OF_STEP: Final = (
    '(SELECT "offset" FROM begun WHERE step = :step AND trainer = :trainer AND id BETWEEN :since AND :until '
    "ORDER BY id DESC LIMIT 1)"
)
GROUPS_OF_STEP: Final = (
    f'(SELECT DISTINCT partition, "offset" FROM step_groups WHERE begun = {LATEST_OF_STEP}) u '
    'CROSS JOIN groups g ON g.partition = u.partition AND g."offset" = u."offset"'
)
_OF_STEP: Final = (
    'EXISTS (SELECT 1 FROM step_groups u WHERE u.partition = g.partition AND u."offset" = g."offset" '
    f"AND u.begun = {LATEST_OF_STEP})"
)
# Whether all runs of a group's task have the same reward, but for rounding; of a task without rewards, too
EQUAL_RUNS: Final = (
    "(SELECT coalesce(max(m.run_max) - min(m.run_min), 0) < 1e-6 FROM groups m WHERE m.id <= :until AND m.id IN ("
    "SELECT g.id UNION ALL SELECT n.id FROM parts o JOIN parts w ON w.task_id = o.task_id "
    'CROSS JOIN groups n ON n.partition = w.partition AND n."offset" = w."offset" '
    'WHERE o.partition = g.partition AND o."offset" = g."offset"))'
)
# What must hold of a group in which a sample may match
_OF_GROUP: Final = {
    "task_id": "g.task_id = :task_id",
    "batch_id": "g.batch_id = :batch_id",
    "step": _OF_STEP,
    "reward_min": "g.reward_max >= :reward_min",
    "reward_max": "g.reward_min <= :reward_max",
    "version_min": "g.version_max >= :version_min",
    "version_max": "g.version_min <= :version_max",
    "teaches_nothing": f"{EQUAL_RUNS} = :teaches_nothing",
}
_OF_SAMPLE: Final = {
    "reward_min": "s.reward >= :reward_min",
    "reward_max": "s.reward <= :reward_max",
    "version_min": "s.version_max >= :version_min",
    "version_max": "s.version_min <= :version_max",
}
_QUOTED: Final = re.compile(r'"([^"]*)"?|(\S+)')


def of_groups(wanted: terms.SampleFilter) -> str:
    """Return conditions on groups, each with ``AND`` before it."""
    return _joined(_OF_GROUP, wanted)


def of_samples(wanted: terms.SampleFilter) -> str:
    return _joined(_OF_SAMPLE, wanted)


def rewards(wanted: terms.SampleFilter) -> str:
    """Return the conditions on a sample's reward alone; empty where there are none."""
    return _joined({name: _OF_SAMPLE[name] for name in ("reward_min", "reward_max")}, wanted)


def values_of(db: sqlite3.Connection, wanted: terms.SampleFilter, until: float | None) -> dict[str, Any]:
    names = (name for name in terms.SampleFilter.__struct_fields__ if name != "text")
    of = {} if wanted.step is None else whose(db, wanted.trainer, until).values
    return {name: getattr(wanted, name) for name in names} | {"until": last_number(until)} | of


def match_of(text: str) -> str:
    """Return the search for all words of a text: nothing in it is taken for an operator.

    >>> match_of('so "the answer is" 4')
    '"so" "the answer is" "4"'

    Raises:
        terms.QuestionError: There is no word in it, or it is too long.
    """
    if len(text) > terms.MAX_TEXT_CHARS:
        raise terms.QuestionError(f"a text to search for has at most {terms.MAX_TEXT_CHARS} characters")
    parts = [quoted or word.replace('"', "") for quoted, word in _QUOTED.findall(text)]
    # A part without a letter or a digit has no words, and would match nothing.
    found = [part.replace("\0", " ") for part in parts if any(char.isalnum() for char in part)]
    if not found:
        raise terms.QuestionError("a text to search for needs a word of letters or digits")
    return " ".join(f'"{part}"' for part in found)


def _joined(table: dict[str, str], wanted: terms.SampleFilter) -> str:
    return "".join(f" AND {sql}" for name, sql in table.items() if getattr(wanted, name) is not None)


_ANY: Final = 1 << 62


def page_values(ask: terms.PageAsk) -> dict[str, int]:
    """Return the values that a query of a page names: ``before``, and ``rows``, one more than are shown."""
    return {"before": _ANY if ask.before is None else ask.before, "rows": ask.rows + 1}


def row_page[R](
    found: Iterable[tuple[Any, ...]], ask: terms.PageAsk, make: Callable[[tuple[Any, ...]], R]
) -> terms.RowPage[R]:
    """Return a page of what such a query finds; the first value of each row is its number."""
    rows = list(found)
    shown = rows[: ask.rows]
    return terms.RowPage([make(row) for row in shown], str(shown[-1][0]) if len(rows) > ask.rows else None)


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
    db: sqlite3.Connection,
    wanted: terms.SampleFilter = terms.ALL_SAMPLES,
    ask: terms.PageAsk = terms.FIRST_PAGE,
    *,
    until: float | None = None,
) -> terms.RowPage[terms.GroupRow]:
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


def groups_of_task(db: sqlite3.Connection, task_id: str, until: float | None) -> list[terms.GroupRow]:
    return groups(db, terms.SampleFilter(task_id=task_id), terms.PageAsk(limit=MAX_GROUPS), until=until).rows[::-1]


def sample(
    db: sqlite3.Connection, place: terms.SamplePlace, *, until: float | None = None
) -> terms.SampleDetail | None:
    """Return one sample; None: there is none. Its tokens are on the log: see ``PastRecords``."""
    values = {"partition": place.partition, "offset": place.offset, "until": last_number(until)}
    query = f'SELECT {_GROUP} FROM groups g WHERE g.partition = :partition AND g."offset" = :offset'
    found = db.execute(f"{query} AND g.id <= :until", values).fetchone()
    if found is None or not 0 <= place.number < found[11]:
        return None
    number = sample_number(found[0], place.number)
    query = f"SELECT {SAMPLE} FROM samples s JOIN groups g ON g.id = s.id >> {SAMPLE_BITS} WHERE s.id = ?"
    return terms.SampleDetail(
        row=sample_rows(db, db.execute(query, (number,)).fetchall())[0],
        group=_group_of(found),
        fates=_fates(db, place, found[4], values),
    )


def sample_rows(db: sqlite3.Connection, found: Sequence[tuple[Any, ...]]) -> list[terms.SampleRow]:
    rows = []
    for number, partition, offset, *values in found:
        head = db.execute("SELECT head FROM texts WHERE id = ?", (number,)).fetchone()
        place = terms.SamplePlace(partition, offset, number_in_group(number))
        rows.append(terms.SampleRow(place, *(*values, head and head[0])))
    return rows


def whole_group(
    db: sqlite3.Connection, partition: int, offset: int, *, until: float | None = None
) -> terms.WholeGroup | None:
    """Return all parts of the group that a record is of, and the steps that were begun with it; None: no record."""
    values = {"partition": partition, "offset": offset, "until": last_number(until)}
    places = db.execute(f"{_PARTS} LIMIT {MAX_GROUPS}", values).fetchall() or [(partition, offset)]
    query = f'SELECT {_GROUP} FROM groups g WHERE g.partition = :partition AND g."offset" = :offset AND g.id <= :until'
    found = [db.execute(query, values | {"partition": at[0], "offset": at[1]}).fetchone() for at in places]
    parts = [_group_of(row) for row in found if row is not None]
    if not any((part.partition, part.offset) == (partition, offset) for part in parts):
        return None
    uses = [terms.GroupUse(*use[:3]) for use in _begun_with(db, values, parts[0].task_id)]
    return terms.WholeGroup(parts=parts, missing=len(places) - len(parts), uses=uses)


def left_out(db: sqlite3.Connection, begun: int, task_id: str | None = None) -> list[LeftOut]:
    """Return what a step leaves out, of one task or of all; the first ``MAX_LIMIT``."""
    query = (
        "SELECT task_id, reason, samples, detail FROM left_out WHERE begun = ? AND coalesce(task_id = ?, 1) "
        "ORDER BY rowid LIMIT ?"
    )
    return [
        LeftOut(task_id=task, reason=reason, samples=json.loads(samples), detail=detail)
        for task, reason, samples, detail in db.execute(query, (begun, task_id, terms.MAX_LIMIT))
    ]


type _Use = tuple[terms.StepName, float, list[LeftOut], bool, int, str]


def _begun_with(db: sqlite3.Connection, values: dict[str, Any], task_id: str) -> list[_Use]:
    # The steps that were begun with a record of a group: when, what they leave out of it, whether it is replayed, the
    # place of its first sample in the whole group, and of which run they are
    return [
        (terms.StepName(step, trainer, follows), time_of(number), left_out(db, key, task_id), bool(again), first, run)
        for key, step, trainer, follows, number, again, first, run in db.execute(
            _BEGUN_WITH, values | {"most": MAX_GROUPS}
        ).fetchall()
    ]


def _group_of(row: tuple[Any, ...]) -> terms.GroupRow:
    _, *values, equal, steps = row
    return terms.GroupRow(
        *(*values, bool(equal), sorted((terms.StepName(*step) for step in json.loads(steps)), key=_live_first))
    )


def _live_first(step: terms.StepName) -> tuple[bool, int, str]:
    return step.follows is not None, step.step, step.trainer


def _fates(
    db: sqlite3.Connection, place: terms.SamplePlace, task_id: str, values: dict[str, Any]
) -> list[terms.SampleUse]:
    found = []
    for step, at, rows, replayed, first, run in _begun_with(db, values, task_id):
        why = next((one for one in reversed(rows) if first + place.number in one.samples), None)
        reason, detail = (None, "") if why is None else (why.reason, why.detail)
        of_step = {"trainer": step.trainer, "run": run, "step": step.step, "number": place.number}
        figures = db.execute(_FIGURES, values | of_step).fetchone()
        told = None if figures is None else terms.Place(TOKEN_FIGURES.name, *figures)
        found.append(terms.SampleUse(step, at, replayed, reason, detail, told))
    return found


_WINDOW: Final = 20_000  # Groups
_FEW: Final = 5_000  # Samples that are found by their reward and sorted, rather than looked for from the newest back
_REST: Final = (1 << SAMPLE_BITS) - 1
_THEIR_SAMPLES: Final = (
    f"CROSS JOIN samples s ON s.id BETWEEN g.id << {SAMPLE_BITS} AND g.id << {SAMPLE_BITS} | {_REST}"
)
_FIRST, _LAST = f"g.id << {SAMPLE_BITS}", f"g.id << {SAMPLE_BITS} | {_REST}"
_WITH_WORDS: Final = (
    # A prompt stands for all samples of its group.
    f"words CROSS JOIN groups g ON g.id = words.rowid >> {SAMPLE_BITS} CROSS JOIN samples s ON s.id BETWEEN "
    f"CASE WHEN words.rowid & {PROMPT} THEN {_FIRST} ELSE words.rowid END AND "
    f"CASE WHEN words.rowid & {PROMPT} THEN {_LAST} ELSE words.rowid END"
)


class _Plan(Struct, frozen=True):
    source: str
    order: str
    left: terms.SampleFilter  # What of the question the source does not settle
    is_whole: bool  # Whether there is little to look at, so that it need not be done in windows
    more: str = ""


def samples(
    db: sqlite3.Connection, wanted: terms.SampleFilter, ask: terms.PageAsk, until: float | None, limit_s: float
) -> terms.RowPage[terms.SampleRow]:
    # A search that has not filled its page stops after ``limit_s``.
    values = values_of(db, wanted, until)
    stop_at = awake.now() + limit_s
    found: list[tuple[Any, ...]] = []
    for low, matching in _search(db, SAMPLE, wanted, values, ask.before):
        for row in matching:
            if len(found) == ask.rows:
                return terms.RowPage(sample_rows(db, found), str(found[-1][0]))
            found.append(row)
        if low > 0 and awake.now() > stop_at:
            after = str(low + 1 << SAMPLE_BITS)
            return terms.RowPage(sample_rows(db, found), after, searched_back_to=time_of(low))
    return terms.RowPage(sample_rows(db, found))


def histogram(
    db: sqlite3.Connection,
    wanted: terms.SampleFilter = terms.ALL_SAMPLES,
    *,
    bins: int = 40,
    until: float | None = None,
) -> terms.Histogram:
    """Return how the rewards of samples are spread; of more than ``MAX_HISTOGRAM_SAMPLES``, those of the newest."""
    found: list[float | None] = []
    for _, matching in _search(db, "s.id, s.reward", wanted, values_of(db, wanted, until), None):
        found += [reward for _, reward in islice(matching, terms.MAX_HISTOGRAM_SAMPLES + 1 - len(found))]
        if len(found) > terms.MAX_HISTOGRAM_SAMPLES:
            break
    counted = found[: terms.MAX_HISTOGRAM_SAMPLES]
    told = np.array([reward for reward in counted if reward is not None])
    finite = told[np.isfinite(told)]
    counts, edges = np.histogram(finite, bins) if len(finite) else (np.zeros(0), np.zeros(0))
    return terms.Histogram(
        bins=[
            terms.Bin(low, high, int(count))
            for low, high, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts, strict=True)
        ],
        samples=len(counted),
        without_reward=len(counted) - len(finite),
        newest_only=len(found) > terms.MAX_HISTOGRAM_SAMPLES,
    )


def _search(
    db: sqlite3.Connection, columns: str, wanted: terms.SampleFilter, values: dict[str, Any], before: int | None
) -> Iterator[tuple[int, Iterator[tuple[Any, ...]]]]:
    # For each window: the number that its groups are above, and rows of samples in it that match, by the sample's
    # number
    top = (values["until"] << SAMPLE_BITS | _REST) + 1
    values = values | {"before": top if before is None else min(top, before)}
    if wanted.text is not None:
        values["match"] = match_of(wanted.text)
    plan = _plan(db, wanted, values)
    rows = "words.rowid, " if wanted.text is not None else ""
    query = (
        f"SELECT {rows}{columns} FROM {plan.source} WHERE g.id > :low AND g.id <= :high AND s.id < :before "
        f"{plan.more} {of_groups(plan.left)} {of_samples(plan.left)} ORDER BY {plan.order}"
    )
    high = values["before"] - 1 >> SAMPLE_BITS
    while high > 0:
        low = 0
        if not plan.is_whole:
            window = "SELECT id FROM groups WHERE id <= ? ORDER BY id DESC LIMIT 1 OFFSET ?"
            edge = db.execute(window, (high, _WINDOW)).fetchone()
            low = 0 if edge is None else edge[0]
        bounds = {
            "low": low,
            "high": high,
            "low_word": low << SAMPLE_BITS | _REST,
            "high_word": high << SAMPLE_BITS | _REST,
        }
        found = db.execute(query, values | bounds)
        yield low, found if wanted.text is None else _once(found)
        high = low


def _once(rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    # Leave out a sample's own words where its prompt, which comes before, has brought the whole group
    whole = -1
    for word, found in groupby(rows, itemgetter(0)):
        if word & PROMPT:
            whole = word >> SAMPLE_BITS
            # In the order of their numbers: to have the database do it would have it sort all that it finds.
            yield from (row[1:] for row in reversed(list(found)))
        elif word >> SAMPLE_BITS != whole:
            yield from (row[1:] for row in found)


def _plan(db: sqlite3.Connection, wanted: terms.SampleFilter, values: dict[str, Any]) -> _Plan:
    in_order = "g.id DESC, s.id DESC"
    if wanted.text is not None:
        # Bounds of the words themselves, so that they are not looked for in all that there is.
        more = "AND words MATCH :match AND words.rowid > :low_word AND words.rowid <= :high_word"
        return _Plan(_WITH_WORDS, "words.rowid DESC", wanted, is_whole=False, more=more)
    if wanted.step is not None:
        return _Plan(f"{GROUPS_OF_STEP} {_THEIR_SAMPLES}", in_order, replace(wanted, step=None), is_whole=True)
    if wanted.task_id is not None or wanted.batch_id is not None:
        return _Plan(f"groups g {_THEIR_SAMPLES}", in_order, wanted, is_whole=True)
    by_reward = rewards(wanted)
    if by_reward:
        few = f"SELECT 1 FROM samples s INDEXED BY samples_reward WHERE 1 {by_reward} LIMIT {_FEW}"
        if db.execute(f"SELECT count(*) FROM ({few})", values).fetchone()[0] < _FEW:
            source = f"samples s INDEXED BY samples_reward CROSS JOIN groups g ON g.id = s.id >> {SAMPLE_BITS}"
            return _Plan(source, "s.id DESC", wanted, is_whole=True)
    return _Plan(f"groups g {_THEIR_SAMPLES}", in_order, wanted, is_whole=False)
