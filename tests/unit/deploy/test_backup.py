"""The scripts that back the stack up and restore it, with a docker that only writes down what it is asked."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "deploy" / "docker-compose"

DOCKER = """#!/usr/bin/env bash
printf '%s\\n' "$*" >> "$CALLS"
for argument in "$@"; do
  case $argument in *:/backup) folder=${argument%:/backup} ;; esac
done
if [ "$1" = run ] && [ -n "${folder:-}" ]; then echo backup > "$folder/${@: -1}"; fi
exit "${STATUS:-0}"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def script(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([FOLDER / name, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def packed(path: Path, *parts: str) -> Path:
    for part in parts:
        (path.parent / "mesh" / part).mkdir(parents=True)
        (path.parent / "mesh" / part / "file").touch()
    with tarfile.open(path, "w:gz") as archive:
        for part in parts:
            archive.add(path.parent / "mesh" / part, part)
    return path


def test_a_backup_is_made_of_a_stack_that_stands_still(calls: Path, tmp_path: Path) -> None:
    done = script("backup.sh", "mesh.tar.gz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    stop, copy, start = calls.read_text().splitlines()
    assert stop == "compose stop"
    for part in ("kafka", "checkpoints", "model"):
        assert f"-v trinity-bus_{part}:/mesh/{part}:ro" in copy
    assert f"-v {tmp_path}:/backup" in copy
    assert start == "compose up --detach --wait"
    assert (tmp_path / "mesh.tar.gz").exists()
    again = script("backup.sh", "mesh.tar.gz", cwd=tmp_path)
    assert again.returncode == 1
    assert "never overwritten" in again.stderr


def test_a_restore_begins_with_nothing_and_ends_with_a_stack_that_works(calls: Path, tmp_path: Path) -> None:
    packed(tmp_path / "mesh.tar.gz", "kafka", "checkpoints", "model")
    done = script("restore.sh", "mesh.tar.gz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    down, make, copy, start = calls.read_text().splitlines()
    assert (down, make) == ("compose down --volumes", "compose up --no-start")
    for part in ("kafka", "checkpoints", "model"):
        assert f"-v trinity-bus_{part}:/mesh/{part} " in copy
    assert copy.endswith("tar -xzf /backup/mesh.tar.gz -C /mesh")
    assert start == "compose up --detach --wait"


@pytest.mark.parametrize("parts", [(), ("kafka", "model")])
def test_nothing_is_forgotten_for_a_file_that_is_no_backup(calls: Path, tmp_path: Path, parts: tuple[str, ...]) -> None:
    packed(tmp_path / "mesh.tar.gz", *parts)
    done = script("restore.sh", "mesh.tar.gz", cwd=tmp_path)
    assert done.returncode == 1
    assert "is no backup of the stack" in done.stderr
    assert not calls.exists()
    assert script("restore.sh", "missing.tar.gz", cwd=tmp_path).returncode != 0
    assert not calls.exists()


def test_how_they_are_called_is_said(calls: Path, tmp_path: Path) -> None:
    for name in ("backup.sh", "restore.sh"):
        done = script(name, cwd=tmp_path)
        assert done.returncode == 2
        assert f"./{name} mesh.tar.gz" in done.stderr
    assert not calls.exists()
