from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.chat.models import tokenizer_of
from tests.support.fakes.tiny_trainer import write_model
from workers.cli.tasks import app
from workers.taskset.description import DatasetError

GOOD = '{"task_id": "t1", "workflow": "math", "prompt": "1 + 1 =", "answer": "2"}\n'
WITH_SCHEMA = '{"schema": "task", "schema_version": 1, "task_id": "t2", "workflow": "math", "prompt": "1 + 1 ="}\n'
SHOWN = '{"prompt": "6 * 7 =", "response": "42"}\n'


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "tasks.jsonl"
        path.write_text(text)
        return str(path)

    return write


BAD = "nonsense\n"


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        (["--dry-run"], GOOD + BAD, "1 task is good, 1 line is bad"),
        (["--dry-run"], GOOD + WITH_SCHEMA, "2 tasks are good, 0 lines are bad"),
        (["--dry-run", "-"], GOOD, "1 task is good"),
        (["--dry-run", "--kind", "demonstrations"], SHOWN + BAD, "1 demonstration is good, 1 line is bad"),
    ],
)
def test_lines_are_checked_and_a_bad_one_stops_it_all(
    written: Callable[[str], str], arguments: list[str], text: str, said: str
) -> None:
    file = [] if "-" in arguments else [written(text)]
    result = CliRunner().invoke(app, ["produce", *arguments, *file], input=text)
    assert result.exit_code == (BAD in text)
    assert said in result.stderr
    assert ("tasks.jsonl:2" in result.stderr) == (BAD in text)


def test_a_file_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["produce", str(tmp_path / "absent.jsonl")])
    assert result.exit_code == 2
    assert "cannot be read" in " ".join(result.stderr.replace("│", " ").split())


def test_examples_are_written_as_tokens_of_the_model_where_there_is_one(
    written: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "model", vocabulary=600)
    tokenizer_of("qwen3").save_pretrained(model)
    monkeypatch.setenv("TRINITY_BUS_MESH__MODEL_PATH", str(model))
    good = '{"messages": [{"role": "user", "content": "6 * 7"}], "response": "42"}\n'
    file = written(good + good.replace("42", "42 " * 200))
    result = CliRunner().invoke(app, ["produce", "--dry-run", "--kind", "demonstrations", file])
    assert result.exit_code == 1
    assert "tasks.jsonl:2: example_too_long:" in result.stderr
    assert "the model has 128 positions" in result.stderr
    assert "1 demonstration is good, 1 line is bad" in result.stderr


SETS = (
    '[[train]]\npath = "t.jsonl"\n[[eval]]\nname = "held-out"\npath = "t.jsonl"\nrepeat_times = 4\n'
    "sampling = { temperature = 0.6 }\n"
)


def test_sets_are_counted_and_shown_and_a_bad_row_is_told(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(GOOD)
    (tmp_path / "sets.toml").write_text(SETS)
    result = CliRunner().invoke(app, ["tasks", str(tmp_path / "sets.toml"), "--show", "2"])
    assert result.exit_code == 0
    assert "taskset-0/0/t1" in result.stdout
    assert "taskset-0/1/t1" in result.stdout
    assert ["eval", "held-out", "1", "4"] in [line.replace("│", " ").split() for line in result.stdout.splitlines()]
    (tmp_path / "t.jsonl").write_text(GOOD + "nonsense\n")
    with pytest.raises(DatasetError, match=r"t\.jsonl:2: not_msgpack_or_json"):
        CliRunner().invoke(app, ["tasks", str(tmp_path / "sets.toml")], catch_exceptions=False)
