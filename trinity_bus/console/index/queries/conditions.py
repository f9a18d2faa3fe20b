"""What the parts of a ``SampleFilter`` are in SQL, what words somebody searches for, pages, and whose steps are meant.

A page ends where the number of its last row says, and the next one goes on below it.

Trainers of several names have steps of the same numbers: stages, shadows, replays. So has one trainer that began anew,
whose steps of the run before are nobody's any more. A question is about one trainer, and the last of its runs: the one
that is asked for, or else the live one that spoke last.
"""

import re
import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec import Struct

from trinity_bus.console.index.answers import RowPage, TrainerRow
from trinity_bus.console.index.questions import MAX_TEXT_CHARS, PageAsk, QuestionError, SampleFilter
from trinity_bus.console.index.schema import last_number, time_of

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


def trainers(db: sqlite3.Connection, *, until: float | None = None) -> list[TrainerRow]:
    """Return who has steps: the live trainer that spoke last first, and those that follow one last."""
    return [row for row, _ in _known(db, until)]


def whose(db: sqlite3.Connection, trainer: str | None, until: float | None) -> Whose:
    for row, found in _known(db, until):
        if trainer in {None, row.trainer}:
            return found
    # Of a name that has no steps yet: figures of batches are the live trainer's.
    return Whose(trainer, of_batches=trainer is None)


def _known(db: sqlite3.Connection, until: float | None) -> list[tuple[TrainerRow, Whose]]:
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
        row = TrainerRow(trainer, follows, step, time_of(last))
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


def of_groups(wanted: SampleFilter) -> str:
    """Return conditions on groups, each with ``AND`` before it."""
    return _joined(_OF_GROUP, wanted)


def of_samples(wanted: SampleFilter) -> str:
    return _joined(_OF_SAMPLE, wanted)


def rewards(wanted: SampleFilter) -> str:
    """Return the conditions on a sample's reward alone; empty where there are none."""
    return _joined({name: _OF_SAMPLE[name] for name in ("reward_min", "reward_max")}, wanted)


def values_of(db: sqlite3.Connection, wanted: SampleFilter, until: float | None) -> dict[str, Any]:
    names = (name for name in SampleFilter.__struct_fields__ if name != "text")
    of = {} if wanted.step is None else whose(db, wanted.trainer, until).values
    return {name: getattr(wanted, name) for name in names} | {"until": last_number(until)} | of


def match_of(text: str) -> str:
    """Return the search for all words of a text: nothing in it is taken for an operator.

    >>> match_of('so "the answer is" 4')
    '"so" "the answer is" "4"'

    Raises:
        QuestionError: There is no word in it, or it is too long.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise QuestionError(f"a text to search for has at most {MAX_TEXT_CHARS} characters")
    parts = [quoted or word.replace('"', "") for quoted, word in _QUOTED.findall(text)]
    # A part without a letter or a digit has no words, and would match nothing.
    found = [part.replace("\0", " ") for part in parts if any(char.isalnum() for char in part)]
    if not found:
        raise QuestionError("a text to search for needs a word of letters or digits")
    return " ".join(f'"{part}"' for part in found)


def _joined(table: dict[str, str], wanted: SampleFilter) -> str:
    return "".join(f" AND {sql}" for name, sql in table.items() if getattr(wanted, name) is not None)


_ANY: Final = 1 << 62


def page_values(ask: PageAsk) -> dict[str, int]:
    """Return the values that a query of a page names: ``before``, and ``rows``, one more than are shown."""
    return {"before": _ANY if ask.before is None else ask.before, "rows": ask.rows + 1}


def row_page[R](found: Iterable[tuple[Any, ...]], ask: PageAsk, make: Callable[[tuple[Any, ...]], R]) -> RowPage[R]:
    """Return a page of what such a query finds; the first value of each row is its number."""
    rows = list(found)
    shown = rows[: ask.rows]
    return RowPage([make(row) for row in shown], str(shown[-1][0]) if len(rows) > ask.rows else None)
