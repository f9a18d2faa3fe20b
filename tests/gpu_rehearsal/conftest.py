"""What rehearsals share: the stand-in, built once, and processes that see GPUs."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.cuda_standin.build import MARK, Rehearse, build, environment
from tests.support.mesh.processes import marked_processes

_LIMIT_S = 500
"""Of one process. An engine starts in two minutes on one core, most of it imports."""


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("standin")
    build(folder)
    return folder


@pytest.fixture
def rehearse(standin: Path, tmp_path: Path) -> Iterator[Rehearse]:
    """Run a function in a process that sees GPUs; returns what it told."""
    # Sockets lie there, whose paths are short.
    folder = tempfile.mkdtemp(prefix="gpu-")

    def run(
        function: str, *words: str, gpus: int = 1, variables: dict[str, str] | None = None, status: int = 0
    ) -> list[dict[str, Any]]:
        command = [sys.executable, "-W", "ignore", "-m", "tests.support.cuda_standin.children", function, *words]
        # Kernels are not built: what is compiled could compute nothing here.
        own = {"TORCHDYNAMO_DISABLE": "1", "TMPDIR": folder, MARK: str(tmp_path), **(variables or {})}
        env = {**environment(standin, gpus), **own}
        log = tmp_path / "errors"
        with log.open("wb") as errors:
            # A file, for what outlives its process would hold a pipe.
            done = subprocess.run(
                command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=_LIMIT_S, check=False
            )
        assert done.returncode == status, log.read_text(errors="replace")[-4000:]
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    yield run
    for process in marked_processes(MARK, str(tmp_path)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    shutil.rmtree(folder)
