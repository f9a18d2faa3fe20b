"""Task sets as an endless order of tasks. Pure, but for reading files.

::

    description --> sources --> rows --formatter--> tasks     all of them, before anything runs
                                                      |
    place k --> whose turn (shares) --> which line (order) --> task, under an id of its own

The task at place ``k`` follows from the files, the seed, ``k``, and where the order goes by them the results so far: so
a restart needs to know nothing but how many were produced. Task ids are ``<taskset>/<use>/<id of the row>``. A task id
may be used once in a mesh's lifetime, so each use of a row has a number of its own: its epoch, or its place.

Failures: see ``reading`` and ``description``. docs/tasksets.md describes the orders. ``by_difficulty`` hangs on results
too; what was produced is not drawn again all the same, because each place is used once.
"""

import hashlib
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np

from schemas import Sampling, Task
from schemas.record import MAX_ID_LENGTH
from trinity_bus.config.coordinator import OrderName
from trinity_bus.rollout.workflow import WorkflowError, merge_sampling
from trinity_bus.rollout.workflows import puzzle_at, puzzles
from workers.taskset.description import GYM_WORKFLOW, DatasetError, RowSource, describe
from workers.taskset.reading import FormatError, Lines, read, task_of

# Place to the line, and what tells this use of the line from every other: its epoch, or where lines are drawn anew each
# time, the place.
type Order = Callable[[int], tuple[int, int]]

# Of a line whose runs all did equally well, beside 1 of one of which half the runs did well: it may change.
LEAST_WEIGHT: Final = 0.05


class PassRates:
    """How well each line was answered last, and which to draw by that.

    A group of runs that all earn the same teaches nothing (its advantages are zero), and one with as many good ones as
    bad ones the most: with ``p`` the mean reward, the variance of a reward of 0 or 1 is ``p (1 - p)``. A line is drawn
    in proportion to ``max(4 p (1 - p), LEAST_WEIGHT)``; one that was not answered yet counts as a half.
    """

    def __init__(self, lines: int) -> None:
        self._weights = np.ones(lines)
        self._sums: np.ndarray[tuple[int], np.dtype[np.float64]] | None = None

    def saw(self, line: int, reward: float) -> None:
        """Note the mean reward of a line's runs; beyond 0 and 1 it counts as these, and NaN says nothing."""
        if math.isnan(reward):
            return
        p = min(max(reward, 0.0), 1.0)
        self._weights[line] = max(4 * p * (1 - p), LEAST_WEIGHT)
        self._sums = None

    def draw(self, share: float) -> int:
        """Return the line at a share, from 0 to below 1, of all weights."""
        if self._sums is None:
            self._sums = np.cumsum(self._weights)
        return int(np.searchsorted(self._sums, share * self._sums[-1], side="right"))


def make_order(name: OrderName, count: int, seed: int, difficulties: Sequence[float | str], rates: PassRates) -> Order:
    """Return an order of so many lines; ``difficulties`` for ``easy_to_hard``, ``rates`` for ``by_difficulty``."""

    def by_epoch(lines: Callable[[int], Sequence[int]]) -> Order:
        def order(place: int) -> tuple[int, int]:
            epoch, index = divmod(place, count)
            return lines(epoch)[index], epoch

        return order

    @lru_cache(maxsize=2)
    def rising(epoch: int) -> Sequence[int]:
        return sorted(shuffled(count, seed, epoch), key=lambda line: difficulties[line])

    def share(place: int) -> float:
        return random.Random(f"{seed}/{place}").random()  # noqa: S311 - what a seed repeats is the point

    orders: dict[OrderName, Order] = {
        "sequential": by_epoch(lambda _: range(count)),
        "shuffled": by_epoch(lambda epoch: shuffled(count, seed, epoch)),
        "random": lambda place: (int(share(place) * count), place),
        "easy_to_hard": by_epoch(rising),
        "by_difficulty": lambda place: (rates.draw(share(place)), place),
    }
    return orders[name]


@lru_cache(maxsize=32)
def shuffled(count: int, seed: int, epoch: int) -> Sequence[int]:
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311 - likewise
    return order


@lru_cache(maxsize=8)
def turns(shares: tuple[int, ...]) -> Sequence[int]:
    """Return one round of several sets that take turns: each as often as its share, as evenly as can be.

    Smooth weighted round-robin: at each turn all gain their share, and who has most is chosen and pays the sum.

    >>> turns((3, 1))
    [0, 0, 1, 0]
    """
    gained = [0] * len(shares)
    chosen = []
    for _ in range(sum(shares)):
        gained = [have + share for have, share in zip(gained, shares, strict=True)]
        first = max(range(len(shares)), key=lambda i: gained[i])
        gained[first] -= sum(shares)
        chosen.append(first)
    return chosen


_LONGEST_USE = 20  # digits and slashes between the names of taskset and row
_SYSTEM = "Think about the question, and then give your answer between <answer> and </answer>."


@dataclass(frozen=True, slots=True)
class Ordered:
    tasks: Sequence[Task]
    order: Order

    @property
    def size(self) -> int:
        return len(self.tasks)

    def use(self, place: int) -> tuple[int, Task]:
        """Return what tells this use of a row from every other, and its task."""
        line, use = self.order(place)
        return use, self.tasks[line]


class Gym:
    """Puzzles that reasoning-gym makes without end, one for each place; DatasetError where it does not know them."""

    size = None

    def __init__(self, source: RowSource, seed: int) -> None:
        self._source = source
        self._seed = seed
        try:
            self._task(0)
        except (WorkflowError, FormatError) as error:
            raise DatasetError(str(error)) from error
        self.digest = json.dumps([source.gym, source.options, version("reasoning-gym")], sort_keys=True).encode()

    def use(self, place: int) -> tuple[int, Task]:
        """Return a place's task, and a number that is told apart by it already."""
        return 0, self._task(place)

    def lines(self, count: int) -> Lines:
        return Lines([self._task(place) for place in range(count)], digest=self.digest)

    def _task(self, place: int) -> Task:
        seed, number = puzzle_at(place, self._seed)
        puzzle = puzzles(str(self._source.gym), self._source.options, seed)[number]
        system = _SYSTEM if self._source.system is None else self._source.system
        asked = [{"role": "user", "content": puzzle["question"]}]
        if self._source.chat:
            said: dict[str, Any] = {"messages": [{"role": "system", "content": system}, *asked] if system else asked}
        else:
            said = {"prompt": f"{system}\n\n{puzzle['question']}" if system else puzzle["question"]}
        fields = {
            "workflow": GYM_WORKFLOW,
            "answer": puzzle["answer"] or "",
            "data": {"gym": self._source.gym, "options": self._source.options, "seed": seed, "number": number},
            **said,
        }
        return task_of(self._source, fields, str(place))


@dataclass(frozen=True, slots=True)
class Dataset:
    parts: Sequence[Ordered | Gym]  # that take turns
    shares: Sequence[int]  # how often each has its turn in a round
    # Of files, seed and description: two of the same give the same tasks in the same order.
    fingerprint: str
    # Where the results of a row are noted, by its id; empty where the order does not go by results.
    lines: Mapping[str, tuple[PassRates, int]]

    @property
    def size(self) -> int | None:  # None: without end
        sizes = [part.size for part in self.parts]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def task(self, taskset: str, place: int) -> Task:
        """Return the train task at a place, 0, 1, 2 ... over all epochs; ``taskset`` stands in front of the id."""
        round_, turn = divmod(place, sum(self.shares))
        order = turns(tuple(self.shares))
        chosen = order[turn]
        use, task = self.parts[chosen].use(round_ * self.shares[chosen] + order[:turn].count(chosen))
        return task.model_copy(update={"task_id": f"{taskset}/{use}/{task.task_id}"})

    def saw(self, row_id: str, reward: float) -> None:
        if (found := self.lines.get(row_id)) is not None:
            rates, line = found
            rates.saw(line, reward)


@dataclass(frozen=True, slots=True)
class EvalSet:
    name: str
    tasks: tuple[Task, ...]

    def of_version(self, taskset: str, version: int | str) -> list[Task]:
        """All tasks as one eval batch for a model version, or a moment; ``sort_batch_id`` says why it is called so."""
        return [
            task.model_copy(
                update={
                    "task_id": f"{taskset}/exam/{version}/{task.task_id}",
                    "batch_id": f"{version}/{self.name}",
                    "batch_type": "eval",
                    "batch_size": len(self.tasks),
                    # Once and greedily, unless the set or the task says otherwise.
                    "repeat_times": task.repeat_times or 1,
                    "sampling": merge_sampling(Sampling(temperature=0.0), task.sampling),
                }
            )
            for task in self.tasks
        ]


@dataclass(frozen=True, slots=True)
class TaskSets:
    train: Dataset | None
    evals: tuple[EvalSet, ...]


def load(path: Path, *, taskset: str = "", seed: int = 0, order: OrderName = "shuffled") -> TaskSets:
    """Read what a path stands for, a file of tasks or a description and its files; DatasetError where it is unfit."""
    description = describe(path)
    longest_id = MAX_ID_LENGTH - len(taskset) - _LONGEST_USE

    def tasks_of(source: RowSource) -> Lines:
        if source.gym is not None:
            return Gym(source, seed).lines(source.size or 0)
        return read(source, path.parent, longest_id=longest_id)

    evals = tuple(EvalSet(source.name, tuple(tasks_of(source).tasks)) for source in description.eval)
    if not description.train:
        return TaskSets(None, evals)
    found: list[Gym | Lines] = [
        Gym(source, seed) if source.gym is not None and source.size is None else tasks_of(source)
        for source in description.train
    ]
    try:
        return TaskSets(_dataset(description.train, found, seed, order), evals)
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from error


def _dataset(sources: Sequence[RowSource], found: Sequence[Gym | Lines], seed: int, order: OrderName) -> Dataset:
    digest = hashlib.sha256(b"".join(part.digest for part in found) + str(seed).encode())
    described = [source.model_dump(mode="json", exclude_defaults=True, exclude={"path", "rows"}) for source in sources]
    # One file of tasks in the order of always has no more to it.
    if described != [{}] or order != "shuffled":
        digest.update(json.dumps([order, *described], sort_keys=True).encode())
    if sources[0].share is None and len(found) > 1:
        found = [reduce(Lines.joined, [part for part in found if isinstance(part, Lines)])]
    parts: list[Ordered | Gym] = []
    noted: dict[str, tuple[PassRates, int]] = {}
    for part in found:
        if isinstance(part, Gym):
            parts.append(part)
            continue
        rates = PassRates(len(part.tasks))
        parts.append(_ordered(part, seed, order, rates))
        if order == "by_difficulty":
            noted |= {task.task_id: (rates, i) for i, task in enumerate(part.tasks)}
    shares = [source.share or 1 for source in sources[: len(parts)]]
    return Dataset(parts, shares, digest.hexdigest(), noted)


def _ordered(lines: Lines, seed: int, order: OrderName, rates: PassRates) -> Ordered:
    if order == "easy_to_hard" and len(lines.difficulties) != len(lines.tasks):
        raise DatasetError("the order easy_to_hard needs the column of difficulties of each [[train]]: difficulty=...")
    ranks = _ranks(lines.difficulties) if order == "easy_to_hard" else ()
    return Ordered(lines.tasks, make_order(order, len(lines.tasks), seed, ranks, rates))


def _ranks(difficulties: Sequence[Any]) -> Sequence[float | str]:
    try:
        return [float(value) for value in difficulties]
    except (TypeError, ValueError):
        return [str(value) for value in difficulties]
