"""Tasks on their way to the log: how they are sent, and the names that they and their batches have there.

=====================  ============  ========================  ====================================================
what                   given         on the log                why
=====================  ============  ========================  ====================================================
batch of a             ``3``         ``3``                     the log has text only; results bring the id back as it
``RolloutCoordinator``                                         was given. ``3`` and ``"3"`` are one batch. Blanks and
                                                               the like are escaped, see ``schemas.batch``
task                   ``gsm8k-7``   ``3#gsm8k-7``             a task id counts once on the whole log, and the same
                                                               task is asked again in another batch
batch of a             ``3``         ``3@1f2e3d4c``            several schedulers number their steps alike, and one
``Scheduler``                        ``3@1f2e3d4c.2``          may use an id again when it is through with it
=====================  ============  ========================  ====================================================

A batch's name has no ``#``, which makes task ids unambiguous.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from schemas import Position, Task
from schemas.batch import escaped
from schemas.errors import shown
from schemas.record import IDENTIFIER_PATTERN, MAX_ID_LENGTH, BatchType
from schemas.topic import Topic
from schemas.topics import TASKS
from trinity_bus.bus import Producer, partition_of
from trinity_bus.config import KafkaSettings
from trinity_bus.errors import RefusedError

type BatchId = int | str

_MARK = "#"
_OF_SCHEDULER = re.compile(r"@[0-9a-f]{8}(\.\d+)?$")
_ODD = re.compile(r"[^A-Za-z0-9._:/@#-]")
_NOT_FIRST = "._:/@#-"
_PART_CHARS = 99


def batch_name(batch_id: BatchId) -> str:
    """Return a batch's name on the log; RefusedError where it is neither a number nor text, or cannot stand there."""
    if isinstance(batch_id, bool) or not isinstance(batch_id, int | str):
        raise RefusedError(f"a batch id is an int or a str, not {shown(batch_id)}")
    name = escaped(str(batch_id))
    if (isinstance(batch_id, int) and batch_id < 0) or not _is_identifier(name):
        raise RefusedError(
            f"{shown(batch_id)} cannot be a batch id: numbers from 0, or text of 1 to 200 characters, of which all but "
            "letters, digits and . _ : / @ - count as five or more"
        )
    return name


def is_of_scheduler(batch: str) -> bool:
    # by its name on the log
    return _OF_SCHEDULER.search(batch) is not None


def task_name(batch: str, task_id: str) -> str:
    # Its id on the log.
    name = f"{batch}{_MARK}{task_id}"
    if not _is_identifier(name):
        raise RefusedError(f"task id {name!r} is too long: batch id and task id may have 199 characters together")
    return name


def batch_of_task(name: str) -> str:
    return name.partition(_MARK)[0]


def given_task_id(name: str) -> str:
    return name.partition(_MARK)[2]


def tasks_of(
    tasks: Sequence[Task],
    batch: str,
    batch_type: BatchType,
    size: int | None,
    taken: AbstractSet[str] = frozenset(),
    *,
    producer: str | None = None,
) -> list[Task]:
    """Return the tasks as they go to the log, each naming its batch. What they said of a batch before is replaced.

    ``size``: of the batch, None for an open one. ``taken``: ids on the log that it has already; RefusedError where two
    tasks have the same. ``producer``: who sends those that do not say.
    """
    named = [
        task.model_copy(
            update={
                "task_id": task_name(batch, task.task_id),
                "batch_id": batch,
                "batch_type": batch_type,
                "batch_size": size,
                "producer": task.producer or producer,
            }
        )
        for task in tasks
    ]
    counts = Counter(task.task_id for task in named)
    for name, count in counts.items():
        if count > 1 or name in taken:
            given = _OF_SCHEDULER.sub("", batch)
            raise RefusedError(f"task id {given_task_id(name)!r} is twice in batch {given!r}: give each task its own")
    return named


def producer_name(settings: KafkaSettings, name: str) -> str:
    """Whose the tasks and batches of a client are: its name, below that of its user where it logs in as one.

    Nobody checks the name. But where each producer has a user of its own, no two have the same by chance.
    """
    parts = [name] if settings.sasl_username is None else [settings.sasl_username, name]
    return "/".join(_ODD.sub("-", part)[:_PART_CHARS].lstrip(_NOT_FIRST) or "unnamed" for part in parts)


def sent_by(producer: str, tasks: Iterable[Task]) -> Iterator[Task]:
    """Return the tasks; those that do not say who sends them are this producer's."""
    for task in tasks:
        yield task if task.producer is not None else task.model_copy(update={"producer": producer})


def _is_identifier(name: str) -> bool:
    return len(name) <= MAX_ID_LENGTH and re.fullmatch(IDENTIFIER_PATTERN, name) is not None


IN_FLIGHT: Final = 1000  # records that are sent but not yet known to be durable


async def send_tasks(producer: Producer, tasks: Iterable[Task], on_queued: Callable[[], None] = lambda: None) -> int:
    """Send tasks and wait until all are durable; return how many. SendError: one is not known to be.

    Those of a batch that name their producer go to one partition, that of the producer. So the coordinator accepts them
    in this order, which is that of the manifest, and of dispatch among tasks of equal length. Batches are full in the
    order in which they were submitted, however late the log is read. ``on_queued`` is called after each is handed over.
    """

    def partition(task: Task) -> int | None:
        return None if task.batch_id is None else partition_of(task.producer or task.batch_id, TASKS.partitions)

    return await send_all(producer, TASKS, ((t.task_id, t, partition(t)) for t in tasks), on_queued)


async def send_all(
    producer: Producer,
    topic: Topic,
    records: Iterable[tuple[str, Any, int | None]],
    on_queued: Callable[[], None] = lambda: None,
) -> int:
    """Send records, each with key and partition (None: that of the key), until all are durable; return how many.

    Those of a partition lie there in their order. SendError where one is not known to be durable.
    """
    pending: list[asyncio.Future[Position]] = []
    count = 0
    for key, record, partition in records:
        pending.append(asyncio.ensure_future(await producer.send(topic, key, record, partition=partition)))
        count += 1
        on_queued()
        if len(pending) >= IN_FLIGHT:
            await asyncio.gather(*pending)
            pending.clear()
    await asyncio.gather(*pending)
    return count
