"""A part's own process: measures as its command line says, with an ``options.folder`` that is thrown away."""

import argparse
import asyncio
import tempfile
from importlib import import_module
from pathlib import Path

from benchmarks._gpu.figures import Figures, NotHereError
from benchmarks._gpu.sizes import SIZES


def main() -> None:
    told = argparse.ArgumentParser(description=__doc__)
    told.add_argument("work", help="a module here, and its function or coroutine function: matrix:measure")
    told.add_argument("figures", type=Path, help="file to add figures to")
    told.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    told.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    told.add_argument("--size", choices=SIZES, default="tiny")
    told.add_argument("--method", choices=("memory", "gloo", "nccl"), default="memory", help="of a transfer")
    options = told.parse_args()
    module, _, function = options.work.partition(":")
    figures = Figures(options.figures)
    try:
        with tempfile.TemporaryDirectory(prefix="trinity-bus-gpu-") as folder:
            options.folder = Path(folder)
            done = getattr(import_module(f"benchmarks._gpu.{module}"), function)(options, figures)
            if asyncio.iscoroutine(done):
                asyncio.run(done)
    except NotHereError as error:
        figures.say({"skipped": str(error)})


if __name__ == "__main__":
    main()
