"""Trainers forked from one process that has imported all they need; each says on a pipe which points it passes.

Run as a program. A line on stdin is a trainer to fork, as JSON: its environment, its log, a pipe with a name. Answers
are lines on stdout: its process id, and when it has ended, its status. One lives at a time.

Points, a byte each: ``b`` a step begins, ``t`` it is trained, ``s`` its weights are copied, ``c`` a checkpoint is
begun, ``w`` half of it is written, ``u`` all of it but for its name, ``d`` it has its name, ``a`` the step is told of.
"""

import ctypes
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers  # noqa: F401 - the longest of what an engine imports

from trinity_bus.config import Settings
from trinity_bus.runtime.service import run_service
from trinity_bus.training import checkpoint, hf_folder, saving
from trinity_bus.training.torch_engine import TorchEngine
from workers.trainer.announcer import Announcer
from workers.trainer.service import run

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


def report_points(pipe: int) -> None:
    def reporting(owner: Any, name: str, *, before: str = "", after: str = "") -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            os.write(pipe, before.encode())
            result = function(*args, **kwargs)
            os.write(pipe, after.encode())
            return result

        setattr(owner, name, wrapped)

    tell = Announcer.tell

    async def telling(*args: Any, **kwargs: Any) -> None:
        await tell(*args, **kwargs)
        os.write(pipe, b"a")

    Announcer.tell = telling  # type: ignore[method-assign]  # the point of it
    reporting(TorchEngine, "train_step", before="b", after="t")
    reporting(TorchEngine, "hf_tensors", before="s")
    reporting(saving.Snapshot, "write", before="c")
    reporting(hf_folder, "write_weights", before="w")
    reporting(Path, "rename", before="u")
    reporting(checkpoint, "commit", after="d")


def become_trainer(order: dict[str, Any]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(order["env"])
    logging.basicConfig(level="INFO")
    report_points(os.open(order["points"], os.O_WRONLY))
    run_service(lambda: run(Settings()))


def main() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                become_trainer(json.loads(line))
                status = 0
            except SystemExit as error:
                status = error.code if isinstance(error.code, int) else int(error.code is not None)
            except Exception:
                log.exception("the trainer ended")
            finally:
                os._exit(status)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
