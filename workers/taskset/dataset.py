"""A dataset as an endless, seeded order of tasks. Pure, but for reading the file.

Each epoch has all lines once, in an order of its own that the seed fixes. The task at place ``k`` follows from the
file, the seed and ``k`` alone, so a restart needs to know nothing but how many were produced. Task ids are
``<taskset>/<epoch>/<id of the line>``: a task id may be used once in a mesh's lifetime, so each use of a line has its
own.

Failures: a line that is no task, or an id that two lines share, is an error that names the line, before anything runs.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from schemas import Sampling, Task
from schemas.record import MAX_ID_LENGTH
from trinity_bus.errors import TrinityError
from trinity_bus.rollout.workflow import merge_sampling
from workers.task_lines import BadLine, parse

_LONGEST_EPOCH = 12


class DatasetError(TrinityError):
    """A file that is to become tasks cannot."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """The tasks of a file."""

    tasks: tuple[Task, ...]
    seed: int
    fingerprint: str
    """Of the file's bytes and the seed: two of the same give the same tasks in the same order."""

    def task(self, taskset: str, place: int) -> Task:
        """Return the train task at a place.

        Args:
            taskset: Stands in front of the id.
            place: 0, 1, 2 ... over all epochs.
        """
        epoch, index = divmod(place, len(self.tasks))
        task = self.tasks[_order(len(self.tasks), self.seed, epoch)[index]]
        return task.model_copy(update={"task_id": f"{taskset}/{epoch}/{task.task_id}"})

    def eval_tasks(
        self, taskset: str, name: str, version: int, *, repeat_times: int = 1, temperature: float = 0.0
    ) -> list[Task]:
        """All tasks as one eval batch for a model version; see ``sort_batch_id`` for why it is called so.

        Args:
            taskset: Stands in front of the ids.
            name: Of the evaluation.
            version: That is examined.
            repeat_times: Runs of tasks that name no number.
            temperature: Of tasks that name none.
        """
        return [
            task.model_copy(
                update={
                    "task_id": f"{taskset}/exam/{version}/{task.task_id}",
                    "batch_id": f"{version}/{name}",
                    "batch_type": "eval",
                    "batch_size": len(self.tasks),
                    "repeat_times": task.repeat_times or repeat_times,
                    "sampling": merge_sampling(Sampling(temperature=temperature), task.sampling),
                }
            )
            for task in self.tasks
        ]


def load(path: Path, *, taskset: str, seed: int) -> Dataset:
    """Read a file of JSON lines, a task each.

    Raises:
        DatasetError: It cannot be read, has no task, or one of its lines is none.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
    tasks = []
    for found in parse(raw.splitlines(), Task):
        if isinstance(found, BadLine):
            raise DatasetError(f"{path}:{found.number}: {found.reason}")
        number, task = found
        if len(task.task_id) + len(taskset) + _LONGEST_EPOCH > MAX_ID_LENGTH:
            raise DatasetError(f"{path}:{number}: task_id {task.task_id!r} is too long beside the taskset's name")
        tasks.append(task)
    if not tasks:
        raise DatasetError(f"{path} has no task")
    fingerprint = hashlib.sha256(raw + str(seed).encode()).hexdigest()
    return Dataset(tuple(tasks), seed, fingerprint)


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> Sequence[int]:
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311 - an order that a seed repeats is the point
    return order
