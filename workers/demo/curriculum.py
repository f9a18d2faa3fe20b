"""A demo's tasks, in the order in which they are produced.

They ship with the project as JSON lines. A task id may be used once in a mesh's lifetime, so each use of a line gets an
id of its own.
"""

import random
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Literal

from schemas.codec import decode
from schemas.task import Task
from workers.demo.subjects import DemoSubject

HELD_OUT = "held-out"
CHECK = "check"
CHECK_EVERY = 2  # Of the tasks to learn from, the share that a check asks is one in so many


def load_tasks(subject: DemoSubject, name: Literal["train", "held_out"]) -> list[Task]:
    """Return a subject's tasks: those to learn from, or those to be tested with."""
    text = resources.files("workers.demo.tasks").joinpath(f"{subject.tasks}{name}.jsonl").read_text(encoding="utf-8")
    return [decode(line.encode(), Task) for line in text.splitlines()]


def train_stream(tasks: Sequence[Task], seed: int) -> Iterator[Task]:
    """Without end: the tasks in random order, then again in another order, each time under new ids."""
    rng = random.Random(seed)  # noqa: S311 - an order that a seed repeats is the point
    order = list(tasks)
    epoch = 0
    while True:
        epoch += 1
        rng.shuffle(order)
        for task in order:
            yield task.model_copy(update={"task_id": f"{task.task_id}/{epoch}"})


def check_tasks(subject: DemoSubject) -> list[Task]:
    """Return tasks to learn from in which every digit stands at every place: what tells whether to go on training."""
    return load_tasks(subject, "train")[::CHECK_EVERY]
