"""Searches for samples.

A search goes back from the newest group, in windows. What a group's row says of all its samples (task, batch, versions,
least and greatest reward) spares looking at them; words, steps and rare rewards lead straight to what can match. A
search that finds little stops when its time is up: its page says how far it got, and how to go on. So no question takes
long, however much there is.
"""

import sqlite3
from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from trinity_bus import awake
from trinity_bus.console.index.answers import Bin, Histogram, RowPage, SampleRow
from trinity_bus.console.index.queries.conditions import (
    GROUPS_OF_STEP,
    match_of,
    of_groups,
    of_samples,
    rewards,
    values_of,
)
from trinity_bus.console.index.queries.groups import SAMPLE, sample_rows
from trinity_bus.console.index.questions import ALL_SAMPLES, MAX_HISTOGRAM_SAMPLES, PageAsk, SampleFilter
from trinity_bus.console.index.schema import PROMPT, SAMPLE_BITS, time_of

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
    left: SampleFilter  # What of the question the source does not settle
    is_whole: bool  # Whether there is little to look at, so that it need not be done in windows
    more: str = ""


def samples(
    db: sqlite3.Connection, wanted: SampleFilter, ask: PageAsk, until: float | None, limit_s: float
) -> RowPage[SampleRow]:
    # A search that has not filled its page stops after ``limit_s``.
    values = values_of(db, wanted, until)
    stop_at = awake.now() + limit_s
    found: list[tuple[Any, ...]] = []
    for low, matching in _search(db, SAMPLE, wanted, values, ask.before):
        for row in matching:
            if len(found) == ask.rows:
                return RowPage(sample_rows(db, found), str(found[-1][0]))
            found.append(row)
        if low > 0 and awake.now() > stop_at:
            after = str(low + 1 << SAMPLE_BITS)
            return RowPage(sample_rows(db, found), after, searched_back_to=time_of(low))
    return RowPage(sample_rows(db, found))


def histogram(
    db: sqlite3.Connection, wanted: SampleFilter = ALL_SAMPLES, *, bins: int = 40, until: float | None = None
) -> Histogram:
    """Return how the rewards of samples are spread; of more than ``MAX_HISTOGRAM_SAMPLES``, those of the newest."""
    found: list[float | None] = []
    for _, matching in _search(db, "s.id, s.reward", wanted, values_of(db, wanted, until), None):
        found += [reward for _, reward in islice(matching, MAX_HISTOGRAM_SAMPLES + 1 - len(found))]
        if len(found) > MAX_HISTOGRAM_SAMPLES:
            break
    counted = found[:MAX_HISTOGRAM_SAMPLES]
    told = np.array([reward for reward in counted if reward is not None])
    finite = told[np.isfinite(told)]
    counts, edges = np.histogram(finite, bins) if len(finite) else (np.zeros(0), np.zeros(0))
    return Histogram(
        bins=[
            Bin(low, high, int(count))
            for low, high, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts, strict=True)
        ],
        samples=len(counted),
        without_reward=len(counted) - len(finite),
        newest_only=len(found) > MAX_HISTOGRAM_SAMPLES,
    )


def _search(
    db: sqlite3.Connection, columns: str, wanted: SampleFilter, values: dict[str, Any], before: int | None
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


def _plan(db: sqlite3.Connection, wanted: SampleFilter, values: dict[str, Any]) -> _Plan:
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
