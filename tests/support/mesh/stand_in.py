"""``trinity-bus`` with a FAKE engine and a FAKE trainer, and otherwise the real program: a mesh without a model.

``python -m tests.support.mesh.stand_in --config FILE ... run explorer`` as well as ``... up FOLDER EXPLORERS``.
"""

import sys
from itertools import pairwise
from pathlib import Path

from benchmarks._scheduling import consumer
from tests.support.fakes import explorer


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.support.mesh.stand_in", *arguments]


def _up(folder: Path, explorers: int) -> None:
    """What ``workers.cli.up`` does, with services of this program."""
    from rich.console import Console

    from trinity_bus.config import Settings
    from trinity_bus.runtime.service import run_service
    from workers.demo.display import make_display
    from workers.up import UpOptions, run_up

    options = UpOptions(run_dir=folder, explorers=explorers, program=command)
    run_service(lambda: run_up(Settings(), options, make_display(Console(), None)))


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[0] == "up":
        _up(Path(arguments[1]), int(arguments[2]))
        return
    import os

    from trinity_bus.config import CONFIG_VARIABLE
    from workers.cli import app
    from workers.cli.connection import set_option

    kind = arguments[-1]
    if kind not in {"explorer", "trainer"}:
        app.main()
        return
    for option, value in pairwise(arguments):
        if option == "--config":
            os.environ[CONFIG_VARIABLE] = value
        elif option == "--set":
            set_option(value)
    if kind == "explorer":
        explorer.main("words")
    else:
        consumer.main(str(Path(os.environ[CONFIG_VARIABLE]).parent), "0", "1")


if __name__ == "__main__":
    main()
