"""Programs of tests, forked from a process that has imported what they need: in milliseconds, not in seconds.

What is forked is ``python -m MODULE ...`` all the same: the module is run anew, and finds its imports done. There is
one such process for each kind of program that a session asks for.
"""

import atexit
import os
import runpy
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, Literal

from tests.support.mesh.waiting import wait_until
from trinity_bus.runtime.preload import Preload
from trinity_bus.runtime.process import Process, tail

type Kind = Literal["services", "engines", "vllm"]

ROOT: Final = Path(__file__).parents[3]
LOAD_S: Final = 120.0
_ERRORS: Final = "FORKED_ERRORS"
"""A variable that names the file for what a command prints as errors, where that is not to be with the rest."""


def forked(*arguments: str, name: str, env: Mapping[str, str], output: Path, kind: Kind = "services") -> Process:
    """Start a module with arguments; with ``PYTHONWARNINGS=error`` its warnings are errors.

    But for services it is forked when somebody asks for it, ``poll`` or ``pid``, after all is imported.
    """
    return _preload(kind).start(arguments, name=name, env=env, output=output)


def finished(
    *arguments: str, env: Mapping[str, str], limit_s: float = 120.0, kind: Kind = "services"
) -> subprocess.CompletedProcess[str]:
    """A module that has run to its end, and with it all that it has started; what it printed is in two parts."""
    with tempfile.TemporaryDirectory(prefix="forked-") as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        errors.touch()
        with forked(*arguments, name="command", env={**env, _ERRORS: str(errors)}, output=output, kind=kind) as process:
            code = process.wait(limit_s)
        assert code is not None, f"{arguments} did not end within {limit_s:g} s: {tail(output)} {tail(errors)}"
        return subprocess.CompletedProcess(arguments, code, output.read_text(), errors.read_text())


@cache
def _preload(kind: Kind) -> Preload:
    """What all of a kind are forked from in this session."""
    descriptor, log = tempfile.mkstemp(prefix="preload-", suffix=".log")
    os.close(descriptor)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    begun = Preload.begin([f"{__name__}:{kind}"], name=kind, main=f"{__name__}:main", env=env, output=Path(log))
    atexit.register(Path(log).unlink)
    atexit.register(begun.close)
    if kind == "services":
        wait_until(lambda: begun.loaded or begun.process.poll() is not None, "imports of services", LOAD_S, 0.01)
        assert begun.loaded, tail(Path(log))
    return begun


def services() -> None:
    """What coordinators, fake workers and commands that look at the log import."""
    import benchmarks._scheduling.consumer  # noqa: F401
    import tests.support.fakes.explorer  # noqa: F401
    import workers.cli.app
    import workers.coordinator.service  # noqa: F401


def engines() -> None:
    """What a trainer imports when it makes its engine."""
    import transformers  # noqa: F401

    import workers.trainer.service  # noqa: F401


def vllm() -> None:
    """What an explorer imports that starts vLLM."""
    from trinity_bus.inference.launch import preload

    preload()


def main() -> None:
    """What each order to fork is: a module, and its arguments."""
    if errors := os.environ.pop(_ERRORS, None):
        os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)
    if os.environ.get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")
    module = sys.argv.pop(1)
    # Imported or not, it is run as the program now.
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
