from pathlib import Path

import pytest
from typer.testing import CliRunner

from workers.cli.tasks import app
from workers.taskset.description import DatasetError

SETS = (
    '[[train]]\npath = "t.jsonl"\n[[eval]]\nname = "held-out"\npath = "t.jsonl"\nrepeat_times = 4\n'
    "sampling = { temperature = 0.6 }\n"
)
LINE = '{"task_id": "t1", "workflow": "math", "prompt": "1 + 1 =", "answer": "2"}\n'


def test_sets_are_counted_and_shown_and_a_bad_row_is_told(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(LINE)
    (tmp_path / "sets.toml").write_text(SETS)
    result = CliRunner().invoke(app, ["tasks", str(tmp_path / "sets.toml"), "--show", "2"])
    assert result.exit_code == 0
    assert "taskset-0/0/t1" in result.stdout
    assert "taskset-0/1/t1" in result.stdout
    assert ["eval", "held-out", "1", "4"] in [line.replace("│", " ").split() for line in result.stdout.splitlines()]
    (tmp_path / "t.jsonl").write_text(LINE + "nonsense\n")
    with pytest.raises(DatasetError, match=r"t\.jsonl:2: not_msgpack_or_json"):
        CliRunner().invoke(app, ["tasks", str(tmp_path / "sets.toml")], catch_exceptions=False)
