"""Formatters that packages register, and reasoning-gym: stand-ins are installed in a folder on the path."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support import packages
from tests.unit.taskset.test_dataset import described, ids, line, lines, rows, trained
from trinity_bus import Task
from trinity_bus.rollout import workflows
from trinity_bus.testing import ScriptedEngine, run_workflow
from workers.taskset.description import DatasetError

type Install = Callable[[str, str, str], None]

GYM = '''
"""Stands in for reasoning-gym: counts, and judges the count."""

def create_dataset(name, seed, size, start=0):
    if name != "count":
        raise ValueError(f"Dataset {name!r} not registered")
    return Count(start)

class Count:
    def __init__(self, first):
        self.first = first

    def __getitem__(self, number):
        said = str(self.first + number)
        return {"question": f"What comes after {self.first + number - 1}?", "answer": said, "metadata": {}}

    def score_answer(self, answer, entry):
        return 1.0 if answer == entry["answer"] else 0.25
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "reasoning_gym", raising=False)
    workflows._puzzles.cache_clear()
    return partial(packages.install, tmp_path)


def test_a_package_registers_a_formatter(install: Install, tmp_path: Path) -> None:
    source = "def swapped(row):\n    return {'workflow': 'math', 'prompt': row['a'], 'answer': row['q'].strip()}\n"
    install("swapping", source, "[trinity_bus.formatters]\nswapped = swapping:swapped\n")
    (tmp_path / "r.jsonl").write_bytes(lines({"q": " 2", "a": "1 + 1"}))
    text = '[[train]]\npath = "r.jsonl"\nformatter = "{0}"\n'
    task = trained(described(tmp_path, text.format("swapped"))).task("math", 0)
    assert (task.prompt, task.answer) == ("1 + 1", "2")
    with pytest.raises(DatasetError, match=r"formatter 'swaped' is not known; did you mean 'swapped'"):
        described(tmp_path, text.format("swaped"))
    (tmp_path / "r.jsonl").write_bytes(lines({"q": " 2", "a": "1 + 1"}, {"q": 2}))
    with pytest.raises(DatasetError, match=r"r.jsonl:2: formatter 'swapped' raised KeyError: 'a'"):
        described(tmp_path, text.format("swapped"))


async def test_reasoning_gym_makes_tasks_without_end_and_judges_them(install: Install, tmp_path: Path) -> None:
    install("reasoning_gym", GYM, "")
    text = '[[train]]\ngym = "count"\noptions = {{ start = 5 }}\nchat = false\nsystem = ""\n{0}\n'
    dataset = trained(described(tmp_path, text.format(""), seed=2))
    assert dataset.size is None
    assert rows(ids(dataset, 3, 10_000)) == ["10000", "10001", "10002"]
    task = dataset.task("math", 3)
    assert (task.prompt, task.answer) == ("What comes after 7?", "8")
    engine = ScriptedEngine(["I count: <answer> 8 </answer>", "11"])
    workflow = workflows.GymWorkflow()
    good, bad = await run_workflow(workflow, task.model_copy(update={"repeat_times": 2}), engine)
    assert (good.reward, bad.reward) == (1.0, 0.25)
    with pytest.raises(Exception, match="made by another version of reasoning-gym: its answer is '9' there"):
        await run_workflow(workflow, task.model_copy(update={"answer": "9"}), engine)

    assert trained(described(tmp_path, text.format("size = 4"))).size == 4
    with pytest.raises(DatasetError, match="reasoning-gym has no 'chess'"):
        described(tmp_path, '[[train]]\ngym = "chess"\n')
    (tmp_path / "tasks.jsonl").write_bytes(lines(line("a")))
    mixed = '[[train]]\nname = "a"\npath = "tasks.jsonl"\nshare = 1\n[[train]]\nname = "b"\ngym = "count"\nshare = 2\n'
    found = ids(trained(described(tmp_path, mixed)), 6)
    assert [i.split("/")[2] for i in found].count("b") == 4
    assert len({*found}) == 6
    with pytest.raises(DatasetError, match="beside a set without end each"):
        described(tmp_path, mixed.replace("share = 1\n", "").replace("share = 2\n", ""))


async def test_a_task_that_says_not_which_puzzle_it_is_fails(install: Install) -> None:
    install("reasoning_gym", GYM, "")
    with pytest.raises(Exception, match="does not say which puzzle it is: KeyError"):
        await run_workflow(workflows.GymWorkflow(), Task(workflow="reasoning-gym", prompt="?"), ScriptedEngine([""]))
