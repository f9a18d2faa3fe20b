import os
import sys
from pathlib import Path

import pytest

from workers.runs import NoRunError, newest_run, program


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


def test_no_run_says_what_to_do(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(NoRunError, match="run the demo first"):
            newest_run("model", folder)
