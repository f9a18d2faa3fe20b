"""The trainer service as a program; it may tell its points, or kill itself, hard, at one of them.

Its arguments are ``POINT STEP``, where it dies, or ``--tell PIPE``, or none. Points to die at, in the order of a step:

* ``begun``: the step's record is durable, no weight has changed;
* ``trained``: the weights in memory are those of the step, nothing of it is on disk;
* ``half-written``: some files of the checkpoint are there;
* ``unnamed``: the checkpoint is whole and durable, but for its name;
* ``durable``: it has its name, nobody has heard of it.

Points that it tells on the pipe, a byte each: ``b`` a step begins, ``t`` it is trained, ``s`` its weights are copied,
``c`` a checkpoint is begun, ``w`` half of it is written, ``u`` all of it but for its name, ``d`` it has its name, ``a``
the step is told of.
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
from trinity_bus.training import checkpoint, tensors
from trinity_bus.training.engines import saving
from trinity_bus.training.engines.rank_engine import RankEngine
from trinity_bus.training.engines.torch_engine import TorchEngine
from workers.trainer.service import run
from workers.trainer.version_publisher import VersionPublisher


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, step: int) -> None:
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
        tensors.write_weights = dying(tensors.write_weights, lambda path, *_: path.name == folder, before=True)
    elif point == "unnamed":
        Path.rename = dying(Path.rename, lambda path, *_: path.name == folder, before=True)  # type: ignore[method-assign]  # the point of it
    elif point == "durable":
        checkpoint.commit = dying(checkpoint.commit, lambda _, progress, __: progress.step == step, before=False)
    else:
        raise SystemExit(f"unknown point {point}")


def report_points(pipe: int) -> None:
    from trinity_bus.training.engines.megatron_engine import MegatronEngine

    def reporting(owner: Any, name: str, *, before: str = "", after: str = "") -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            os.write(pipe, before.encode())
            result = function(*args, **kwargs)
            os.write(pipe, after.encode())
            return result

        setattr(owner, name, wrapped)

    tell = VersionPublisher.announce

    async def telling(*args: Any, **kwargs: Any) -> None:
        await tell(*args, **kwargs)
        os.write(pipe, b"a")

    VersionPublisher.announce = telling  # type: ignore[method-assign]  # the point of it
    reporting(RankEngine, "train_step", before="b", after="t")
    for engine in (TorchEngine, MegatronEngine):
        reporting(engine, "hf_tensors", before="s")
    reporting(saving.Snapshot, "write", before="c")
    reporting(tensors, "write_weights", before="w")
    reporting(Path, "rename", before="u")
    reporting(checkpoint, "commit", after="d")


def main() -> None:
    logging.basicConfig(level="INFO")
    match sys.argv[1:]:
        case ["--tell", pipe]:
            report_points(os.open(pipe, os.O_WRONLY))
        case [point, step]:
            arm(point, int(step))
    run_service(lambda: run(Settings()))


if __name__ == "__main__":
    main()
