"""How far a taskset is, and what it is to produce next. Pure: no clock, no client, no task.

::

    produce while fewer than `ahead` train tasks have not ended, and epochs are left
       |                                            ^
       '--> task --> ... --> result, or dead letter-'   each ends its task, once

Results are read from where the last committed position says, so each is counted once over all incarnations of the
taskset. A task that is refused has no result but a dead letter; that ends it too, or a dataset with a wrong workflow
name would wait for ever.
"""

from collections.abc import Iterable, Mapping

from schemas import Position, TasksetPosition
from trinity_bus.config import TasksetSettings
from workers.taskset.dataset import Dataset
from workers.taskset.description import DatasetError

type Offsets = dict[int, int]  # partition to the offset to read next


class TasksetProgress:
    """The state of one taskset, from the position that was committed last, by this or an earlier incarnation.

    DatasetError: that position counts the lines of another dataset, or there is no end of what has epochs.
    """

    def __init__(self, own: TasksetSettings, dataset: Dataset, last: TasksetPosition | None) -> None:
        last = last or TasksetPosition(taskset=own.name, fingerprint=dataset.fingerprint)
        if last.fingerprint != dataset.fingerprint:
            raise DatasetError(
                f"taskset {own.name!r} has produced {last.produced} tasks of another dataset or in another order; give "
                "this one a name of its own (TRINITY_BUS_TASKSET__NAME)"
            )
        if own.epochs is not None and dataset.size is None:
            raise DatasetError(f"taskset {own.name!r} has no end, and so no epochs: leave taskset.epochs unset")
        self.produced, self.ended, self.examined = last.produced, last.ended, last.examined
        self.results, self.dead_letters = _offsets(last.results), _offsets(last.dead_letters)
        self._own = own
        self._name = own.name
        self._dataset = dataset
        self._total = None if own.epochs is None or dataset.size is None else own.epochs * dataset.size

    @property
    def room(self) -> int:
        free = max(0, self._own.ahead - (self.produced - self.ended))
        return free if self._total is None else min(free, self._total - self.produced)

    @property
    def done(self) -> bool:
        return self._total is not None and self.ended >= self._total

    def is_ours(self, task_id: str | None) -> bool:
        prefix = f"{self._name}/"
        return task_id is not None and task_id.startswith(prefix) and task_id[len(prefix) :].partition("/")[0].isdigit()

    def read_result(self, task_id: str, partition: int, offset: int, reward: float | None = None) -> None:
        self.results[partition] = offset + 1
        self.ended += self.is_ours(task_id)
        self.learn(task_id, reward)

    def learn(self, task_id: str, reward: float | None) -> None:
        """Note how a task was answered, for orders that go by it; to hear it again changes nothing."""
        if reward is not None and self.is_ours(task_id):
            self._dataset.saw(task_id.removeprefix(f"{self._name}/").partition("/")[2], reward)

    def read_dead_letter(self, key: str | None, partition: int, offset: int) -> None:
        """Note that a dead letter was read; that of a task has its key."""
        self.dead_letters[partition] = offset + 1
        self.ended += self.is_ours(key)

    def is_eval_due(self, version: int) -> bool:
        return version > self.examined and version % self._own.eval_interval == 0

    def position(self) -> TasksetPosition:
        return TasksetPosition(
            taskset=self._name,
            fingerprint=self._dataset.fingerprint,
            produced=self.produced,
            ended=self.ended,
            examined=self.examined,
            results=_positions(self.results),
            dead_letters=_positions(self.dead_letters),
        )


def _offsets(positions: Iterable[Position]) -> Offsets:
    return {position.partition: position.offset for position in positions}


def _positions(offsets: Mapping[int, int]) -> list[Position]:
    return [Position(partition=partition, offset=offset) for partition, offset in sorted(offsets.items())]
