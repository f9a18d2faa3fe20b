"""``trinity-bus workflow``: what it makes passes its own test, and a task of it runs without a mesh."""

import subprocess
import sys
from pathlib import Path

import pytest

from workers.demo.model import make_model

ROOT = Path(__file__).parents[3]


def workflow(*arguments: object, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "workers.cli.app", "workflow", *map(str, arguments)]
    return subprocess.run(command, input=said, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("own")
    done = workflow("new", "my-sums", "--in", parent)
    assert done.returncode == 0, done.stderr
    assert "workflow run" in done.stdout
    return parent / "my-sums"


def test_the_package_passes_its_own_test(made: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", made],
        cwd=made.parent,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_it_names_its_module_to_explorers_and_is_written_once(made: Path) -> None:
    assert (
        '[project.entry-points."trinity_bus.workflows"]\nmy-sums = "my_sums"\n' in (made / "pyproject.toml").read_text()
    )
    for name, why in (("my-sums", "is there already"), ("../x", "is no name of a package")):
        again = workflow("new", name, "--in", made.parent)
        assert (again.returncode, why in again.stderr) == (2, True)


def test_a_task_is_answered_by_whoever_types(made: Path) -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 17, "b": 25}}</tool_call>'
    task = '{"prompt": "17 + 25?", "answer": "42"}'
    command = ["run", made / "my_sums.py", "--task", task]
    done = workflow(*command, said=f"{call}\n42\n")
    assert done.returncode == 0, done.stderr
    assert "user: 17 + 25?" in done.stderr
    for line in (
        "run 0    reward 1,",
        "prompt   tools: ['add']\\nuser: 17 + 25?\\nassistant: ",
        "context  \\ntool: 42\\nassistant: ",
        "sampled  42",
    ):
        assert line in done.stdout
    assert "mask     1" in done.stdout
    short = workflow(*command)
    assert (short.returncode, "standard input has ended" in short.stderr) == (2, True)


def test_a_task_is_answered_by_a_model(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", 0)
    task = '{"prompt": "copy 3 1 4 =", "answer": "3 1 4", "sampling": {"max_tokens": 4, "seed": 1}}'
    done = workflow("run", "sequence", "--task", task, "--engine", model, "--runs", "2")
    assert done.returncode == 0, done.stderr
    assert "prompt   <bos> copy 3 1 4 =" in done.stdout
    assert "run 1    reward 0" in done.stdout
