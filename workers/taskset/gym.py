"""Sets without end: puzzles that reasoning-gym makes, one for each place. The workflow ``reasoning-gym`` judges them.

Failures: a name or an option that reasoning-gym does not know is a ``DatasetError``, before anything runs.
"""

import json
from importlib.metadata import version
from typing import Any

from schemas import Task
from trinity_bus.rollout.workflow import WorkflowError
from trinity_bus.rollout.workflows.gym import puzzle_at, puzzles
from workers.taskset.description import GYM_WORKFLOW, DatasetError, RowSource
from workers.taskset.formatters import FormatError, task_of
from workers.taskset.reading import Lines

_SYSTEM = "Think about the question, and then give your answer between <answer> and </answer>."


class Gym:
    """The puzzles of a name; DatasetError where there are none. The one at a place is always the same."""

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
