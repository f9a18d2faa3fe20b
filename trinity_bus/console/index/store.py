"""The store: what was read of the log, and how far, written together.

::

    records --rows_of, group_rows--> rows --+
                                            +--> one transaction: all of it, or nothing
    positions behind these records ---------+

So whoever is killed at any instant goes on behind the last transaction, and nothing is in the tables twice or missing.
Who has much to add holds the transaction open over some calls: words are cheaper the more of them are written at once.
The store belongs to one log: to topics of given ids. Of another log it is emptied, and so is one of another layout.
"""

import contextlib
import json
import sqlite3
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, Final, Self

from schemas import ExperienceGroup
from trinity_bus.bus import Received, Undecodable
from trinity_bus.console.index.files import explained, lock, writing
from trinity_bus.console.index.group_rows import Texts, group_rows, logprobs_of, texts_of
from trinity_bus.console.index.rows import Row, rows_of
from trinity_bus.console.index.schema import LAYOUT, NUMBERED, REPLACED, SLOT_BITS, TABLES, first_number

type Positions = Mapping[tuple[str, int], int]  # ``(topic name, partition)`` to the offset to read next

_MINUTE_MS: Final = 60_000
_SLOTS: Final = (1 << SLOT_BITS) - 1


class Store:
    """Writes the tables. A context manager; its methods may be called from any thread.

    ``texts`` makes text of tokens, or says in one line why nothing does; so many tokens of a text are searched.

    Raises:
        StoreBusyError: Another process writes it.
        StoreError: It cannot be written.
    """

    def __init__(self, folder: Path, *, texts: Texts | str, search_tokens: int = 2048) -> None:
        self.folder = folder
        self._texts = "samples have no text: console.search_tokens is 0" if not search_tokens else texts
        self._search_tokens = search_tokens
        self._one_at_a_time = threading.Lock()
        self._lock = lock(folder)
        try:
            with explained(folder):
                self._db = writing(folder)
                if self._meta("layout") != str(LAYOUT):
                    self.begin_anew()
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Let another process write. May be called twice."""
        with self._one_at_a_time, explained(self.folder):
            self._db.close()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def holds(self) -> bool:
        """Whether it was given something that is not written for good."""
        return self._db.in_transaction

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        with self._one_at_a_time, explained(self.folder):
            return {(topic, part): next_ for topic, part, next_ in self._db.execute(
                "SELECT topic, partition, next FROM offsets"
            )}  # fmt: skip

    def is_of(self, log: Mapping[str, str]) -> bool:
        """Whether what is in the tables is of this log: the ids of its topics by their names. Nothing is of any."""
        known: Mapping[str, str] = json.loads(self._meta("log") or "{}")
        return all(log.get(topic, identity) == identity for topic, identity in known.items())

    def belong_to(self, log: Mapping[str, str]) -> None:
        known: Mapping[str, str] = json.loads(self._meta("log") or "{}")
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES ('log', ?)", (json.dumps({**known, **log}),))

    def begin_anew(self) -> None:
        with self._transaction() as db:
            made = db.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql IS NOT NULL "
                "AND name NOT LIKE 'sqlite_%' AND (name = 'words' OR name NOT LIKE 'words_%')"
            ).fetchall()
            for (name,) in made:
                db.execute(f'DROP TABLE "{name}"')
            for statement in TABLES.split(";\n"):
                db.execute(statement)
            db.execute("INSERT INTO meta VALUES ('layout', ?)", (str(LAYOUT),))

    def move(self, positions: Positions, lost: int) -> None:
        """Go on from other positions, because retention has deleted so many records that were to be read."""
        with self._transaction() as db:
            self._write_positions(db, positions)
            for topic, partition in list(positions)[:1]:
                db.execute(
                    "UPDATE offsets SET lost = lost + ? WHERE topic = ? AND partition = ?", (lost, topic, partition)
                )

    def take(self, records: Sequence[Received[Any]], positions: Positions, *, hold: bool = False) -> None:
        """Add records, of any topics and in any order, and how far the log is read with them.

        With ``hold`` more comes at once, and all is written together; without records what was held is written. After a
        StoreError nothing of them is written, nor of what was held.
        """
        found = [(one, one.record) for one in records if isinstance(one.record, ExperienceGroup)]
        logprobs = logprobs_of([group for _, group in found])
        texts: Sequence[Sequence[str]] = [()] * len(found)
        if not isinstance(self._texts, str):
            texts = texts_of([group for _, group in found], self._texts, self._search_tokens)
        tables: dict[str, list[Row]] = defaultdict(list)
        unreadable = [one for one in records if isinstance(one.record, Undecodable)]
        for one in records:
            if not isinstance(one.record, Undecodable | ExperienceGroup):
                for table, row in rows_of(one):
                    tables[table].append(row)
        with self._transaction(hold=hold) as db:
            numbers = _Numbers(db)
            group_numbers = (numbers.next("groups", one.timestamp_ms) for one, _ in found)
            # Texts are written in the order of their numbers, which is much the fastest.
            numbered = sorted(zip(group_numbers, found, texts, logprobs, strict=True), key=lambda each: each[0])
            for number, (received, group), text, means in numbered:
                for table, rows in group_rows(number, received, group, text, means).items():
                    tables[table] += rows
            for table, rows in tables.items():
                timed = table in NUMBERED and table != "groups"
                _write(db, table, [(numbers.next(table, row[0]), *row[1:]) for row in rows] if timed else rows)
            self._write_minutes(db, found)
            self._write_positions(db, positions)
            for one in unreadable:
                count = one.last_offset - one.offset + 1
                place = (one.topic.name, one.partition)
                db.execute(
                    "UPDATE offsets SET unreadable = unreadable + ? WHERE topic = ? AND partition = ?", (count, *place)
                )

    @staticmethod
    def _write_minutes(db: sqlite3.Connection, groups: Sequence[tuple[Received[Any], ExperienceGroup]]) -> None:
        minutes: Counter[int] = Counter()
        for one, group in groups:
            minutes[one.timestamp_ms // _MINUTE_MS] += len(group)
        query = "INSERT INTO minutes VALUES (?, ?) ON CONFLICT DO UPDATE SET samples = samples + excluded.samples"
        db.executemany(query, minutes.items())

    @staticmethod
    def _write_positions(db: sqlite3.Connection, positions: Positions) -> None:
        db.executemany(
            "INSERT INTO offsets (topic, partition, next) VALUES (?, ?, ?) "
            "ON CONFLICT DO UPDATE SET next = excluded.next",
            [(topic, partition, next_) for (topic, partition), next_ in positions.items()],
        )

    def _meta(self, name: str) -> str | None:
        with self._one_at_a_time, explained(self.folder):
            there = self._db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'meta'").fetchone()
            row = there and self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
            return None if row is None else str(row[0])

    @contextlib.contextmanager
    def _transaction(self, *, hold: bool = False) -> Iterator[sqlite3.Connection]:
        with self._one_at_a_time, explained(self.folder):
            if not self._db.in_transaction:
                self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                if not hold:
                    self._db.execute("COMMIT")
            except BaseException:
                # A disk that is full may have ended the transaction already.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


def _write(db: sqlite3.Connection, table: str, rows: Sequence[Row]) -> None:
    if rows:
        verb = "INSERT OR REPLACE" if table in REPLACED else "INSERT"
        columns = "words (rowid, text)" if table == "words" else table
        marks = ", ".join(repeat("?", len(rows[0])))
        db.executemany(f"{verb} INTO {columns} VALUES ({marks})", rows)


class _Numbers:
    # Numbers for rows by their time; what finds no slot in its millisecond gets one of the next that has some

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._free: dict[tuple[str, int], int] = {}

    def next(self, table: str, at_ms: int) -> int:
        first = first_number(at_ms)
        while True:
            number = self._free.get((table, first)) or self._unused(table, first)
            if number <= first | _SLOTS:
                self._free[table, first] = number + 1
                return number
            self._free[table, first] = number
            first += 1 << SLOT_BITS

    def _unused(self, table: str, first: int) -> int:
        query = f"SELECT max(id) FROM {table} WHERE id BETWEEN ? AND ?"  # noqa: S608 - names of our own tables
        (last,) = self._db.execute(query, (first, first | _SLOTS)).fetchone()
        return first if last is None else int(last) + 1
