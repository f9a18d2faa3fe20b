from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from workers.cli.produce import app

GOOD = '{"task_id": "t1", "workflow": "math", "prompt": "1 + 1 =", "answer": "2"}\n'
WITH_SCHEMA = '{"schema": "task", "schema_version": 1, "task_id": "t2", "workflow": "math", "prompt": "1 + 1 ="}\n'


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
