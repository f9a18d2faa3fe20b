import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from schemas import Task
from workers.taskset.dataset import Dataset, TaskSets, load
from workers.taskset.description import DatasetError

ROWS = [{"question": f"{i} + {i} = ?", "solution": f"it is #### {2 * i}", "level": 9 - i} for i in range(10)]
COLUMNS = 'workflow = "math"\nprompt = "${question} Pay $$5."\nanswer = "${solution}"\n'


def lines(*tasks: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(task).encode() + b"\n" for task in tasks)


def line(task_id: str, **own: Any) -> dict[str, Any]:
    return {"task_id": task_id, "workflow": "math", "prompt": "1 + 1", "answer": "2", **own}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(lines(*(line(f"t-{i}", data={"level": 9 - i}) for i in range(10))) + b"\n")
    return path


def described(folder: Path, text: str, **options: Any) -> TaskSets:
    (folder / "sets.toml").write_text(text)
    return load(folder / "sets.toml", taskset="math", **options)


def trained(sets: TaskSets) -> Dataset:
    assert sets.train is not None
    return sets.train


def ids(dataset: Dataset, count: int, first: int = 0) -> list[str]:
    return [dataset.task("math", first + k).task_id for k in range(count)]


def rows(ids: list[str]) -> list[str]:
    return [task_id.rpartition("/")[2] for task_id in ids]


def test_each_epoch_has_every_line_once_in_an_order_of_its_own(path: Path) -> None:
    dataset = trained(load(path, taskset="math", seed=7))
    epochs = [ids(dataset, 10, epoch * 10) for epoch in range(3)]
    assert all(sorted(rows(epoch)) == sorted(f"t-{i}" for i in range(10)) for epoch in epochs)
    assert len({tuple(rows(epoch)) for epoch in epochs}) == 3
    assert len({task_id for epoch in epochs for task_id in epoch}) == 30


def test_file_and_seed_fix_the_order_and_a_change_of_anything_is_another_set(path: Path) -> None:
    one, again, other = (trained(load(path, taskset="math", seed=seed)) for seed in (7, 7, 8))
    assert ids(one, 25) == ids(again, 25) != ids(other, 25)
    assert one.fingerprint == again.fingerprint
    alone = trained(described(path.parent, '[[train]]\npath = "tasks.jsonl"\n', seed=7))
    assert alone.fingerprint == one.fingerprint
    fewer = trained(described(path.parent, '[[train]]\npath = "tasks.jsonl"\nrepeat_times = 3\n', seed=7))
    sorted_ = trained(load(path, seed=7, order="sequential"))
    assert len({of.fingerprint for of in (one, other, fewer, sorted_)}) == 4


def test_the_orders(path: Path) -> None:
    description = '[[train]]\npath = "tasks.jsonl"\ndifficulty = "level"\n'
    assert rows(ids(trained(load(path, order="sequential")), 12))[8:] == ["t-8", "t-9", "t-0", "t-1"]
    assert rows(ids(trained(described(path.parent, description, order="easy_to_hard")), 3)) == ["t-9", "t-8", "t-7"]
    drawn = ids(trained(load(path, order="random")), 300)
    assert len({*drawn}) == 300
    assert set(Counter(rows(drawn))) == {f"t-{i}" for i in range(10)}
    with pytest.raises(DatasetError, match="easy_to_hard needs the column of difficulties"):
        load(path, order="easy_to_hard")


def test_by_difficulty_draws_most_what_is_sometimes_answered(path: Path) -> None:
    dataset = trained(load(path, order="by_difficulty"))
    for i in range(10):
        dataset.saw(f"t-{i}", {0: 0.5, 1: 0.25}.get(i, float(i % 2)))
    drawn = Counter(rows(ids(dataset, 2000)))
    # 1, 0.75, and eight times 0.05.
    assert drawn["t-0"] / 2000 == pytest.approx(1 / 2.15, abs=0.05)
    assert drawn["t-1"] / 2000 == pytest.approx(0.75 / 2.15, abs=0.05)
    assert all(drawn[f"t-{i}"] > 0 for i in range(10))


def test_sets_take_turns_by_their_shares_and_without_are_one(path: Path) -> None:
    (path.parent / "few.jsonl").write_bytes(lines(line("x"), line("y")))
    sets = '[[train]]\nname = "a"\npath = "tasks.jsonl"\n{0}\n[[train]]\nname = "b"\npath = "few.jsonl"\n{1}\n'
    mixed = trained(described(path.parent, sets.format("share = 3", "share = 1")))
    found = ids(mixed, 40)
    assert Counter(task_id.split("/")[2] for task_id in found) == {"a": 30, "b": 10}
    assert all(Counter(i.split("/")[2] for i in found[k : k + 4]) == {"a": 3, "b": 1} for k in range(0, 40, 4))
    assert len({*found}) == 40
    pooled = trained(described(path.parent, sets.format("", "")))
    assert pooled.size == 12
    assert len({*rows(ids(pooled, 12))}) == 12


def write(folder: Path, kind: str) -> str:
    match kind:
        case "jsonl":
            (folder / "rows.jsonl").write_bytes(lines(*ROWS))
        case "csv":
            csv.write_csv(pa.Table.from_pylist(ROWS), folder / "rows.csv")
        case "parquet":
            parquet.write_table(pa.Table.from_pylist(ROWS), folder / "rows.parquet")
        case "*.parquet":
            parquet.write_table(pa.Table.from_pylist(ROWS[:4]), folder / "rows-0.parquet")
            parquet.write_table(pa.Table.from_pylist(ROWS[4:]), folder / "rows-1.parquet")
            return "rows-*.parquet"
        case "saved":
            # Written by the library ``datasets`` itself, 4.6.1: ``from_list(ROWS).save_to_disk(..., num_shards=2)``.
            shutil.copytree(Path(__file__).parent / "golden" / "saved", folder / "saved")
            return "saved"
    return f"rows.{kind}"


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "*.parquet", "saved"])
def test_every_format_gives_the_same_tasks(tmp_path: Path, kind: str) -> None:
    name = write(tmp_path, kind)
    text = f'[[train]]\npath = "{name}"\nrows = 10\nsystem = "Think."\ndata = ["level"]\n{COLUMNS}'
    dataset = trained(described(tmp_path, text, order="sequential"))
    third = dataset.task("math", 2)
    assert third.messages is not None
    assert [(m.role, m.content) for m in third.messages] == [("system", "Think."), ("user", "2 + 2 = ? Pay $5.")]
    assert (third.workflow, third.answer, int(third.data["level"])) == ("math", "it is #### 4", 7)


def test_an_evaluation_is_one_batch_of_a_version_drawn_once_and_greedily_unless_told_otherwise(path: Path) -> None:
    own = {"repeat_times": 4, "sampling": {"temperature": 0.7, "max_tokens": 9}}
    path.write_bytes(lines(line("plain"), line("own", **own)))
    sets = described(
        path.parent,
        '[[eval]]\nname = "a"\npath = "tasks.jsonl"\n[[eval]]\nname = "b"\npath = "tasks.jsonl"\nrepeat_times = 2\n'
        "sampling = { temperature = 1.0 }\n",
    )
    assert sets.train is None
    plain, other = sets.evals[0].of_version("math", 20)
    assert {(t.batch_id, t.batch_type, t.batch_size) for t in (plain, other)} == {("20/a", "eval", 2)}
    assert plain.sampling is not None
    assert other.sampling is not None
    assert (plain.repeat_times, plain.sampling.temperature) == (1, 0.0)
    assert (other.repeat_times, other.sampling.temperature, other.sampling.max_tokens) == (4, 0.7, 9)
    second, _ = sets.evals[1].of_version("math", 20)
    assert second.sampling is not None
    assert (second.repeat_times, second.sampling.temperature) == (2, 1.0)
    all_ids = [t.task_id for one in sets.evals for version in (20, 30) for t in one.of_version("math", version)]
    assert len({*all_ids}) == 8
    assert all(isinstance(task, Task) for task in (plain, other))


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
        load(path, taskset="math")
    for name, reason in (("nowhere.jsonl", ": no such file"), ("nowhere.toml", " cannot be read: No such file")):
        with pytest.raises(DatasetError, match=name + reason):
            load(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content", "more", "message"),
    [
        ("r.csv", b"question,solution\n1,2\n3\n", COLUMNS, r"r.csv:3: it has not the 2 columns"),
        ("r.csv", b"question,solution\n1,2\n3,\n", COLUMNS, r"r.csv:3: column 'solution' is empty"),
        ("r.csv", b"question\n1\n", COLUMNS, r"r.csv:2: there is no column 'solution'; there are 'question'"),
        ("r.jsonl", b'{"question": 1, "solution": 1}\n[]\n', COLUMNS, r"r.jsonl:2: this is no JSON object"),
        ("r.jsonl", b'{"question": 1, "solution": 1}\n', COLUMNS + "rows = 2\n", "has 1 row, .* says 2"),
        ("r.jsonl", b'{"question": 1, "solution": 1}\n', COLUMNS + 'id = "a ${question}"\n', r"r.jsonl:1: .*task_id"),
        ("r.parquet", b"no parquet", COLUMNS, "r.parquet: this is no Parquet file"),
        ("r.xml", b"", COLUMNS, r"r.xml: the format '.xml' is not known; there are .jsonl"),
        ("r.csv", b"a\n1\n", 'formatter = "nobodys"\n', "formatter 'nobodys' is not known"),
        ("r.csv", b"a\n1\n", 'prompt = "${a}"\n', r"sets.toml: train.0: workflow is missing"),
        ("r.csv", b"a\n1\n", 'workflow = "math"\nprompt = "$ 1"\n', r"a \$ that begins no column"),
        ("r.csv", b"a\n1\n", 'worflow = "math"\n', r"train.0.worflow: Extra inputs"),
    ],
)
def test_a_bad_row_or_description_is_named_before_anything_runs(
    tmp_path: Path, name: str, content: bytes, more: str, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        described(tmp_path, f'[[train]]\npath = "{name}"\n{more}')


@pytest.mark.parametrize(
    ("rows", "description", "message"),
    [
        ({}, '[[eval]]\nname = "a"\npath = "tasks.jsonl"\nrepeat_times = 2\n', "2 runs at temperature 0"),
        ({"repeat_times": 4}, '[[eval]]\nname = "a"\npath = "tasks.jsonl"\n', "4 runs at temperature 0"),
        ({"sampling": {"temperature": 0.0}}, '[[train]]\npath = "tasks.jsonl"\n', "never trained on"),
        ({}, '[[train]]\npath = "tasks.jsonl"\nsampling = { temperature = 0.0 }\n', "never trained on"),
        ({"repeat_times": 2, "sampling": {"temperature": 0.0}}, '[[train]]\npath = "tasks.jsonl"\n', "2 runs at temp"),
    ],
)
def test_greedy_runs_that_never_work_are_named(
    path: Path, rows: dict[str, Any], description: str, message: str
) -> None:
    path.write_bytes(lines(line("one", **rows)))
    with pytest.raises(DatasetError, match=rf"tasks\.jsonl:1: .*{message}"):
        described(path.parent, description)
