from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from workers.cli.produce import BadLine, app, parse

GOOD = '{"task_id": "t1", "workflow": "math", "prompt": "1 + 1 =", "answer": "2"}\n'
WITH_SCHEMA = '{"schema": "task", "schema_version": 1, "task_id": "t2", "workflow": "math", "prompt": "1 + 1 ="}\n'


def test_lines_become_tasks() -> None:
    found = list(parse([GOOD, "\n", "  \n", WITH_SCHEMA]))
    assert [(item[0], item[1].task_id) for item in found if not isinstance(item, BadLine)] == [(1, "t1"), (4, "t2")]
    assert len(found) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("hello\n", "not_msgpack_or_json"),
        ("[1]\n", "not_msgpack_or_json"),
        ('{"task_id": "t", "workflow": "math"}\n', "prompt"),
        ('{"task_id": "no blanks allowed", "workflow": "math", "prompt": ""}\n', "task_id"),
        ('{"schema": "task", "schema_version": 9, "task_id": "t", "workflow": "math", "prompt": ""}\n', "9"),
        (GOOD, "duplicate_id: task_id 't1' is that of line 1 too"),
    ],
)
def test_a_bad_line_is_told_by_its_number(line: str, reason: str) -> None:
    (bad,) = [item for item in parse([GOOD, line, WITH_SCHEMA]) if isinstance(item, BadLine)]
    assert bad.number == 2
    assert reason in bad.reason


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "tasks.jsonl"
        path.write_text(text)
        return str(path)

    return write


def test_nothing_is_sent_where_a_line_is_bad(written: Callable[[str], str]) -> None:
    result = CliRunner().invoke(app, [written(GOOD + "nonsense\n")])
    assert result.exit_code == 1
    assert "tasks.jsonl:2" in result.stderr
    assert "1 tasks are good, 1 lines are bad; nothing was sent" in result.stderr


def test_a_dry_run_checks_and_sends_nothing(written: Callable[[str], str]) -> None:
    result = CliRunner().invoke(app, ["--dry-run", written(GOOD + WITH_SCHEMA)])
    assert result.exit_code == 0
    assert "2 tasks are good, 0 lines are bad" in result.stderr


def test_standard_input_is_a_file_too() -> None:
    result = CliRunner().invoke(app, ["--dry-run", "-"], input=GOOD)
    assert result.exit_code == 0
    assert "1 tasks are good" in result.stderr


def test_a_file_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path / "absent.jsonl")])
    assert result.exit_code == 2
    assert "cannot be read" in result.stderr
