"""A part's own process: what it is told, and the file to which it writes each figure as soon as it has it.

One JSON object a line, so that what a part had found is there when it crashes: ``{"row": ...}``, ``{"machine": ...}``,
or ``{"skipped": why}``, which is the last one.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks._gpu.sizes import SIZES
from benchmarks._report import Row

DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "bfloat16")


class NotHereError(Exception):
    """This machine lacks what the part measures; the reason is its text."""


class Figures:
    def __init__(self, path: Path) -> None:
        self._path = path

    def row(self, metric: str, value: float, unit: str, **more: Any) -> None:
        self.say({"row": asdict(Row(metric, value, unit, **more))})

    def say(self, what: Mapping[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(what) + "\n")


def run_part(document: str | None, body: Callable[[argparse.Namespace, Figures], Any], *, not_on_cpu: str = "") -> None:
    """Do a part as its command line says; ``options.folder`` is empty, and thrown away.

    Args:
        document: Of the part's module.
        body: Measures; or a coroutine function that does.
        not_on_cpu: Why there is nothing to measure on a CPU, if that is so.
    """
    told = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("figures", type=Path, help="file to add figures to")
    told.add_argument("--device", choices=DEVICES, default="cpu")
    told.add_argument("--dtype", choices=DTYPES, default="float32")
    told.add_argument("--size", choices=SIZES, default="tiny")
    told.add_argument("--method", choices=("memory", "gloo", "nccl"), default="memory", help="of a transfer")
    options = told.parse_args()
    figures = Figures(options.figures)
    if not_on_cpu and options.device == "cpu":
        figures.say({"skipped": not_on_cpu})
        return
    try:
        with tempfile.TemporaryDirectory(prefix="trinity-bus-gpu-") as folder:
            options.folder = Path(folder)
            done = body(options, figures)
            if asyncio.iscoroutine(done):
                asyncio.run(done)
    except NotHereError as error:
        figures.say({"skipped": str(error)})
