"""Whose steps a question is about.

Trainers of several names have steps of the same numbers: stages, shadows, replays. So has one trainer that began anew,
whose steps of the run before are nobody's any more. A question is about one trainer, and the last of its runs: the one
that is asked for, or else the live one that spoke last.
"""

import sqlite3
from typing import Final

from msgspec import Struct

from trinity_bus.console.index.answers import TrainerRow
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
