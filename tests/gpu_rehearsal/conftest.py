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
from trinity_bus.runtime.preload import Preload

_LIMIT_S = 500
"""Of one process. An engine starts in two minutes on one core, most of it imports."""
_CHILDREN = "tests.support.cuda_standin.children"
_FORKED = {"trainer", "resumed", "experts", "ranks", "late", "chain"}
"""Functions whose processes are forked; each of the others is about the start of a process itself."""
_EVERYWHERE = {
    # Kernels are not built: what is compiled could compute nothing here.
    "TORCHDYNAMO_DISABLE": "1",
    "PYTHONWARNINGS": "ignore",
}


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("standin")
    build(folder)
    return folder


@pytest.fixture(scope="session")
def sockets() -> Iterator[Path]:
    """A folder whose path is short."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def preload(standin: Path, sockets: Path) -> Iterator[Preload]:
    """What rehearsals of a trainer are forked from: torch and Megatron are imported once for all of them."""
    env = {**environment(standin, 3), **_EVERYWHERE, "TMPDIR": str(sockets)}
    output = sockets / "preload.log"
    imports, main = f"{_CHILDREN}:imports", f"{_CHILDREN}:main"
    with Preload.begin([imports], name="gpus", main=main, env=env, output=output) as begun:
        yield begun


@pytest.fixture
def rehearse(standin: Path, sockets: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rehearse]:
    """Run a function in a process that sees GPUs; returns what it told."""

    def run(
        function: str, *words: str, gpus: int = 1, variables: dict[str, str] | None = None, status: int = 0
    ) -> list[dict[str, Any]]:
        own = {**_EVERYWHERE, "TMPDIR": str(sockets), MARK: str(tmp_path), **(variables or {})}
        env, output = {**environment(standin, gpus), **own}, tmp_path / "output"
        if function in _FORKED:
            preload: Preload = request.getfixturevalue("preload")
            with preload.start([function, *words], name=function, env=env, output=output) as process:
                code = process.wait(_LIMIT_S)
        else:
            command = [sys.executable, "-m", _CHILDREN, function, *words]
            with output.open("wb") as file:
                # No guard: what it leaves is looked for. And no pipe, which that would hold.
                done = subprocess.run(command, env=env, stdout=file, stderr=file, timeout=_LIMIT_S, check=False)
            code = done.returncode
        said = output.read_text(errors="replace")
        output.unlink()
        assert code == status, said[-4000:]
        return [json.loads(line) for line in said.splitlines() if line.startswith("{")]

    yield run
    for process in marked_processes(MARK, str(tmp_path)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
