"""Files to tasks."""

import json
from pathlib import Path

import pytest

from schemas import Task
from workers.taskset.dataset import Dataset, DatasetError, load


def lines(*tasks: dict[str, object]) -> bytes:
    return b"".join(json.dumps(task).encode() + b"\n" for task in tasks)


def line(task_id: str) -> dict[str, object]:
    return {"task_id": task_id, "workflow": "math", "prompt": "1 + 1", "answer": "2"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(lines(*(line(f"t-{i}") for i in range(10))) + b"\n")
    return path


@pytest.fixture
def dataset(path: Path) -> Dataset:
    return load(path, taskset="math", seed=7)


def test_each_epoch_has_every_line_once_in_an_order_of_its_own(dataset: Dataset) -> None:
    epochs = [[dataset.task("math", epoch * 10 + i) for i in range(10)] for epoch in range(3)]
    orders = [tuple(task.task_id.rpartition("/")[2] for task in epoch) for epoch in epochs]
    assert all(sorted(order) == sorted(f"t-{i}" for i in range(10)) for order in orders)
    assert len(set(orders)) == 3
    assert len({task.task_id for epoch in epochs for task in epoch}) == 30


def test_file_and_seed_fix_the_order(path: Path, dataset: Dataset) -> None:
    again, other = load(path, taskset="math", seed=7), load(path, taskset="math", seed=8)
    assert [again.task("math", k) for k in range(25)] == [dataset.task("math", k) for k in range(25)]
    assert [other.task("math", k) for k in range(25)] != [dataset.task("math", k) for k in range(25)]
    assert again.fingerprint == dataset.fingerprint != other.fingerprint


def test_an_exam_is_one_eval_batch_of_a_version(dataset: Dataset) -> None:
    eval_tasks = dataset.eval_tasks("math", "held-out", 20)
    assert {(task.batch_id, task.batch_type, task.batch_size) for task in eval_tasks} == {("20/held-out", "eval", 10)}
    assert not {task.task_id for task in eval_tasks} & {
        task.task_id for task in dataset.eval_tasks("math", "held-out", 30)
    }
    assert all(isinstance(task, Task) for task in eval_tasks)


def test_an_exam_runs_each_task_once_and_greedily_unless_told_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "exam.jsonl"
    own = {"repeat_times": 4, "sampling": {"temperature": 0.7, "max_tokens": 9}}
    path.write_bytes(lines(line("plain"), line("own") | own))
    plain, other = load(path, taskset="math", seed=0).eval_tasks("math", "held-out", 1)
    assert plain.sampling is not None
    assert other.sampling is not None
    assert (plain.repeat_times, plain.sampling.temperature) == (1, 0.0)
    assert (other.repeat_times, other.sampling.temperature, other.sampling.max_tokens) == (4, 0.7, 9)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "has no task", id="empty"),
        pytest.param(lines(line("a")) + b"{]\n", r":2: not_msgpack_or_json", id="not JSON"),
        pytest.param(lines(line("a"), {"task_id": "b"}), r":2: missing_field", id="no task"),
        pytest.param(lines(line("a"), line("b"), line("a")), r":3: duplicate_id: task_id 'a'", id="twice"),
        pytest.param(lines(line("x" * 190)), r":1: task_id .* is too long", id="long"),
    ],
)
def test_a_bad_line_is_named_before_anything_runs(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        load(path, taskset="math", seed=0)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"nowhere.jsonl cannot be read: No such file"):
        load(tmp_path / "nowhere.jsonl", taskset="math", seed=0)
