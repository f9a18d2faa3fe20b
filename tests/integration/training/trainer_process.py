"""The trainer service as a process that kills itself, hard, at a chosen point of a chosen step.

Run as ``trainer_process.py [POINT STEP]``. Points, in the order of a step:

* ``begun``: the step's record is durable, no weight has changed;
* ``trained``: the weights in memory are those of the step, nothing of it is on disk;
* ``half-written``: some files of the checkpoint are there;
* ``unnamed``: the checkpoint is whole and durable, but for its name;
* ``durable``: it has its name, nobody has heard of it.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trinity_bus.config import Settings
from trinity_bus.runtime.service import run_service
from trinity_bus.training import checkpoint
from workers.trainer.service import run


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, step: int) -> None:
    from trinity_bus.training import hf_folder
    from trinity_bus.training.rank_engine import RankEngine

    def dying(function: Callable[..., Any], when: Callable[..., bool], *, before: bool) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if before and when(*args):
                die()
            result = function(*args, **kwargs)
            if not before and when(*args):
                die()
            return result

        return wrapped

    at_step: Callable[..., bool] = lambda engine, *_: engine.progress.step == step  # noqa: E731 - one line, used thrice
    folder = f".partial-step-{step:08d}"
    if point == "begun":
        before: Callable[..., bool] = lambda engine, *_: engine.progress.step == step - 1  # noqa: E731 - likewise
        RankEngine.train_step = dying(RankEngine.train_step, before, before=True)  # type: ignore[method-assign]  # the point of it
    elif point == "trained":
        RankEngine.train_step = dying(RankEngine.train_step, at_step, before=False)  # type: ignore[method-assign]  # the point of it
    elif point == "half-written":
        hf_folder.write_weights = dying(hf_folder.write_weights, lambda path, *_: path.name == folder, before=True)
    elif point == "unnamed":
        Path.rename = dying(Path.rename, lambda path, *_: path.name == folder, before=True)  # type: ignore[method-assign]  # the point of it
    elif point == "durable":
        checkpoint.commit = dying(checkpoint.commit, lambda _, progress, __: progress.step == step, before=False)
    else:
        raise SystemExit(f"unknown point {point}")


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    if len(sys.argv) > 1:
        arm(sys.argv[1], int(sys.argv[2]))
    run_service(lambda: run(Settings()))
