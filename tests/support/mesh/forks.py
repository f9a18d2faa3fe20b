"""Services of tests, forked from a process that has imported what they need: in milliseconds, not in seconds of a core.

What is forked is ``python -m MODULE ...`` all the same: the module is run anew, and finds its imports done.
"""

import atexit
import os
import runpy
import sys
import tempfile
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.mesh.waiting import wait_until
from trinity_bus.runtime.preload import Preload
from trinity_bus.runtime.process import Process, tail

ROOT: Final = Path(__file__).parents[3]
LOAD_S: Final = 120.0


def forked(*arguments: str, name: str, env: Mapping[str, str], output: Path) -> Process:
    """Start a module with arguments; with ``PYTHONWARNINGS=error`` its warnings are errors."""
    return _preload().start(arguments, name=name, env=env, output=output)


@cache
def _preload() -> Preload:
    """What all are forked from in this session."""
    descriptor, log = tempfile.mkstemp(prefix="preload-", suffix=".log")
    os.close(descriptor)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    begun = Preload.begin([f"{__name__}:imports"], name="services", main=f"{__name__}:main", env=env, output=Path(log))
    atexit.register(begun.close)
    wait_until(lambda: begun.loaded or begun.process.poll() is not None, "imports of services", LOAD_S, 0.01)
    assert begun.loaded, tail(Path(log))
    Path(log).unlink()
    return begun


def imports() -> None:
    import benchmarks._scheduling.consumer  # noqa: F401
    import tests.support.fakes.explorer  # noqa: F401
    import workers.cli.app
    import workers.coordinator.service  # noqa: F401


def main() -> None:
    if os.environ.get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")
    module = sys.argv.pop(1)
    # Imported or not, it is run as the program now.
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
