import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trinity_bus.errors import ConfigError
from workers.cli import demo
from workers.runs import NoRunError, new_run, newest_run, program


def test_the_program_is_called_as_this_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project" / ".venv" / "bin"
    folder.mkdir(parents=True)
    script = folder / "trinity-bus"
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path / "project")
    assert program() == ".venv/bin/trinity-bus"
    monkeypatch.chdir("/")
    assert program().endswith("project/.venv/bin/trinity-bus")
    monkeypatch.chdir(folder)
    assert program() == str(script)
    monkeypatch.setenv("PATH", str(folder))
    assert program() == "trinity-bus"


def test_the_newest_run_that_has_it(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "old")):
        (tmp_path / name / "model").mkdir(parents=True)
        os.utime(tmp_path / name / "model", (1000 - age, 1000 - age))
    (tmp_path / "newest-but-without").mkdir()
    assert newest_run("model", tmp_path) == tmp_path / "new"
    for folder in (tmp_path / "newest-but-without", tmp_path / "absent"):
        with pytest.raises(NoRunError, match="run the demo first"):
            newest_run("model", folder)


def test_runs_that_begin_together_have_a_folder_each(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: new_run("20260101-120000-copy-seed0", tmp_path / "runs"), range(8)))
    assert len(set(made)) == 8
    assert {folder.name for folder in made} >= {"20260101-120000-copy-seed0", "20260101-120000-copy-seed0-2"}


def test_a_folder_that_another_demo_takes_too_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").mkdir()
    # As it looked a moment ago.
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(()))
    refused = CliRunner().invoke(demo.app, ["--run-dir", str(tmp_path)])
    assert isinstance(refused.exception, ConfigError)
    assert "is not empty; give a new folder" in str(refused.exception)
