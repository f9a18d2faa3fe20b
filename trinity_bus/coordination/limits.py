"""What keeps records below their size limits and the books of bounded size, whatever tasks, workflows and clients do.

Bytes of a batch's largest record, ABORTED or FINALIZED (names of fields and framing included):

======================================  ===================================================================
a manifest entry with one part          340 at most, besides its error
each further part                       80 at most
the error of a task                     ``MAX_ERROR_BYTES`` at most
all metrics                             ``MAX_METRICS`` names of ``MAX_METRIC_NAME_BYTES`` together, and for each
                                        three bytes of length and nine for the value
trace links                             128 of 128 bytes
======================================  ===================================================================

A batch has ``MAX_BATCH_TASKS`` tasks at most, and they have ``MAX_BATCH_PARTS`` parts together; fewer where records are
smaller (``mesh.max_record_mib``). Each task has ``parts / expected tasks`` at most, be they of several attempts or the
pieces of one that is too large for a record. The result of one task, of ``MAX_REPEAT_TIMES`` parts at most, is far
smaller.
"""

from schemas import BatchRecord
from schemas.batch import MAX_BATCH_PARTS, MAX_BATCH_TASKS, TASKS_PER_MIB
from schemas.record import Metrics
from schemas.task import MAX_REPEAT_TIMES
from schemas.topic import ROOM

MAX_ERROR_BYTES = 500
MAX_METRICS = 1024
MAX_METRIC_NAME = 200
# Of all names together: a codec estimates that a record takes eight times as many in memory, and then 4.5 MiB at most.
MAX_METRIC_NAME_BYTES = 512 << 10
MAX_UNFILLED_TASKS = 2 * MAX_BATCH_TASKS  # in named batches that are not full
MAX_UNFILLED_BATCHES = 4096
MAX_OPEN_BATCHES = 1024  # without a number of tasks
MAX_KEPT_RESULTS = 4 * MAX_BATCH_TASKS  # of batches that have not ended; above it no more tasks are read
# One batch has this part of ``max_open_bytes`` at most; all named ones together that are not full have all of it.
BATCH_SHARE = 2
# Attempts that one explorer has at once, whatever it offers: they are one entry of the changelog.
MAX_SLOTS = 16_384
MAX_BATCH_WAITERS = 1024  # clients that wait for the end of one batch

_LINES = (340 + MAX_ERROR_BYTES) * MAX_BATCH_TASKS + 80 * (MAX_BATCH_PARTS - MAX_BATCH_TASKS)
_REST = MAX_METRIC_NAME_BYTES + 12 * MAX_METRICS + 128 * 128 + 1024
_SMALLER_FIT = _LINES * TASKS_PER_MIB <= MAX_BATCH_TASKS << 20 and _REST + ROOM <= 1 << 20
if _LINES + _REST > BatchRecord.MAX_BYTES or not _SMALLER_FIT:
    raise ValueError("the limits of batches allow records that nobody may send")


def parts_allowed(expected: int | None, in_batch: int) -> int:
    """Into how many parts each task of a batch may be split that may have ``in_batch`` parts; None: of an open one."""
    return MAX_REPEAT_TIMES if expected is None else in_batch // max(1, expected)


def records_left(expected: int | None, in_batch: int, taken: int) -> int:
    """How many more records the experiences of a task may be in, whose answers are in ``taken`` already."""
    return min(parts_allowed(expected, in_batch), MAX_REPEAT_TIMES) - taken


def short_error(error: str) -> str:
    raw = error.encode("utf-8", "backslashreplace")
    return error if len(raw) <= MAX_ERROR_BYTES else raw[: MAX_ERROR_BYTES - 3].decode("utf-8", "ignore") + "..."


def bounded(metrics: Metrics) -> Metrics:
    """Return the first metrics that a record has room for, without those whose names are beyond all reason."""
    kept: Metrics = {}
    left = MAX_METRIC_NAME_BYTES
    for name, value in metrics.items():
        if len(name) > MAX_METRIC_NAME:
            continue
        left -= len(name.encode())
        if left < 0 or len(kept) == MAX_METRICS:
            break
        kept[name] = value
    return kept
