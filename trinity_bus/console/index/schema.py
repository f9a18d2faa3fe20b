"""The tables of the store, and how rows of it are numbered. Pure.

Rows that lists show are numbered by time: ``milliseconds << 7 | slot``, where slots tell apart what came in the same
one. So "the newest first" and "up to a moment" are ranges of the primary key, in whatever order partitions were read.
Samples follow their group: ``group << 15 | rest``, where ``rest`` falls as the sample's number rises, so that the
newest group comes first, and its samples in their order. A prompt stands before them among the texts.
"""

import re
from typing import Final

from schemas.experience import MAX_SAMPLES

LAYOUT: Final = 10  # Of the tables. A store of another layout is made anew from the log.

SLOT_BITS: Final = 7
# The latest time that a number can hold, with room for slots behind it: the year 2039
MAX_AT: Final = (1 << 41) - (1 << 20)
SAMPLE_BITS: Final = 15
PROMPT: Final = 1 << 14  # Marks a prompt among texts

# Words are gathered up to 16 MiB before they are written, and what was written is put together when there are 16 pieces
# of a size, not 4: a third of the time that it takes, and a search looks into some more of them.
TABLES: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE offsets (
    topic TEXT, partition INTEGER, next INTEGER NOT NULL, unreadable INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
CREATE TABLE minutes (minute INTEGER PRIMARY KEY, samples INTEGER NOT NULL);

CREATE TABLE groups (
    id INTEGER PRIMARY KEY, partition INTEGER, "offset" INTEGER, task_id TEXT, attempt INTEGER, batch_id TEXT,
    batch_type TEXT, workflow TEXT, model TEXT, explorer TEXT, samples INTEGER, reward_mean REAL, reward_min REAL,
    reward_max REAL, run_min REAL, run_max REAL, version_min INTEGER, version_max INTEGER, prompt_tokens INTEGER,
    response_tokens INTEGER, trace_id TEXT
);
CREATE UNIQUE INDEX groups_place ON groups (partition, "offset");
CREATE INDEX groups_task ON groups (task_id);
CREATE INDEX groups_batch ON groups (batch_id);
CREATE TABLE samples (
    id INTEGER PRIMARY KEY, run_id INTEGER, reward REAL, version_min INTEGER, version_max INTEGER,
    prompt_tokens INTEGER, response_tokens INTEGER, logprob REAL, finish_reason TEXT
);
CREATE INDEX samples_reward ON samples (reward);
CREATE TABLE texts (id INTEGER PRIMARY KEY, head TEXT NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (text, content = '', columnsize = 0);
INSERT INTO words (words, rank) VALUES ('hashsize', 16777216);
INSERT INTO words (words, rank) VALUES ('automerge', 16);
INSERT INTO words (words, rank) VALUES ('crisismerge', 32);

CREATE TABLE tasks (
    at INTEGER, partition INTEGER, "offset" INTEGER, task_id TEXT, workflow TEXT, batch_id TEXT, producer TEXT,
    prompt TEXT, answer TEXT
);
CREATE INDEX tasks_task ON tasks (task_id);
CREATE TABLE events (
    at INTEGER, topic TEXT, partition INTEGER, "offset" INTEGER, task_id TEXT, kind TEXT, attempt INTEGER, who TEXT,
    text TEXT
);
CREATE INDEX events_task ON events (task_id);
CREATE TABLE results (
    at INTEGER, partition INTEGER, "offset" INTEGER, task_id TEXT, batch_id TEXT, status TEXT, error TEXT
);
CREATE INDEX results_task ON results (task_id);
CREATE TABLE parts (task_id TEXT, partition INTEGER, "offset" INTEGER, first INTEGER);
CREATE INDEX parts_task ON parts (task_id);
CREATE INDEX parts_place ON parts (partition, "offset");

CREATE TABLE batches (id INTEGER PRIMARY KEY, batch_id TEXT, batch_type TEXT, reward REAL, record BLOB);
CREATE INDEX batches_batch ON batches (batch_id);
CREATE TABLE begun (
    id INTEGER PRIMARY KEY, "offset" INTEGER, trainer TEXT, run TEXT, model TEXT, step INTEGER, batch_id TEXT,
    sequence INTEGER, groups INTEGER, samples INTEGER, left_out INTEGER, replayed INTEGER, examples INTEGER,
    skipped TEXT, follows TEXT, of_batches INTEGER
);
CREATE INDEX begun_step ON begun (step, trainer);
CREATE INDEX begun_trainer ON begun (trainer);
CREATE INDEX begun_run ON begun (trainer, run);
CREATE INDEX begun_batch ON begun (batch_id);
CREATE UNIQUE INDEX begun_offset ON begun ("offset");
CREATE TABLE step_groups (begun INTEGER, partition INTEGER, "offset" INTEGER, first INTEGER, replayed INTEGER);
CREATE INDEX step_groups_begun ON step_groups (begun);
CREATE INDEX step_groups_place ON step_groups (partition, "offset");
CREATE TABLE token_figures (
    id INTEGER PRIMARY KEY, partition INTEGER, "offset" INTEGER, trainer TEXT, run TEXT, step INTEGER,
    group_partition INTEGER, group_offset INTEGER, first INTEGER, last INTEGER
);
CREATE INDEX token_figures_group ON token_figures (group_partition, group_offset);
CREATE TABLE left_out (begun INTEGER, task_id TEXT, reason TEXT, samples TEXT, detail TEXT);
CREATE INDEX left_out_begun ON left_out (begun, task_id);
CREATE TABLE trained (
    id INTEGER PRIMARY KEY, trainer TEXT, model TEXT, step INTEGER, batch_id TEXT, seconds REAL, checksum TEXT,
    follows TEXT, metrics TEXT
);
CREATE INDEX trained_step ON trained (step, trainer);
CREATE INDEX trained_trainer ON trained (trainer);
CREATE TABLE points (name TEXT, at INTEGER, trainer TEXT, step INTEGER, value REAL);
CREATE INDEX points_name ON points (name, at);

CREATE TABLE versions (id INTEGER PRIMARY KEY, model TEXT, version INTEGER, skipped TEXT, record BLOB);
CREATE INDEX versions_version ON versions (version);
CREATE TABLE announced (id INTEGER PRIMARY KEY, model TEXT, version INTEGER, pinned INTEGER);
CREATE TABLE syncs (
    id INTEGER PRIMARY KEY, explorer TEXT, model TEXT, version INTEGER, ok INTEGER, transfer_s REAL, pause_s REAL
);
CREATE INDEX syncs_version ON syncs (version);
CREATE TABLE fleet (
    explorer TEXT, minute INTEGER, at INTEGER, incarnation TEXT, state TEXT, version INTEGER, slots INTEGER,
    running INTEGER, tokens INTEGER, pool TEXT, PRIMARY KEY (explorer, minute)
) WITHOUT ROWID;
CREATE TABLE settings (id INTEGER PRIMARY KEY, service TEXT, name TEXT, told TEXT);
CREATE TABLE dead_letters (
    id INTEGER PRIMARY KEY, topic TEXT, partition INTEGER, "offset" INTEGER, reason TEXT, detail TEXT,
    source_topic TEXT, source TEXT, "key" TEXT, head TEXT
);
"""

# Tables whose first column is a number by time; their rows come with the time there
NUMBERED: Final = frozenset(re.findall(r"CREATE TABLE (\w+) \(\s*id INTEGER", TABLES)) - {"samples", "texts"}
REPLACED: Final = frozenset({"fleet"})  # Tables in which a row takes the place of the one with its key


def first_number(at_ms: int) -> int:
    return min(max(at_ms, 0), MAX_AT) << SLOT_BITS


def last_number(until: float | None) -> int:
    """Return the last number up to a time in seconds; None: of all."""
    at_ms = MAX_AT if until is None else int(min(max(until * 1000, 0), MAX_AT))
    return first_number(at_ms) | (1 << SLOT_BITS) - 1


def time_in_sql(number: str) -> str:
    """Return the expression of the time of a number, in seconds."""
    return f"({number} >> {SLOT_BITS}) / 1000.0"


def time_of(number: int) -> float:
    return (number >> SLOT_BITS) / 1000


def sample_number(group: int, number: int) -> int:
    return group << SAMPLE_BITS | (MAX_SAMPLES - 1 - number)


def number_in_group(sample: int) -> int:
    return MAX_SAMPLES - 1 - (sample & (MAX_SAMPLES - 1))
