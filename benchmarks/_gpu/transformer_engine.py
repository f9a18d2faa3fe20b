"""Training with Transformer Engine's layers: a step beside the plain float32 engine's.

Where it is installed, Megatron's engine takes its layers, in the part ``training`` too; here it is known that it did.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks._gpu.figures import Figures, NotHereError, run_part
from benchmarks._gpu.training import beside_plain
from trinity_bus.training.model import have_transformer_engine


def measure(options: argparse.Namespace, figures: Figures) -> None:
    if options.device == "cpu":
        raise NotHereError("Transformer Engine computes on GPUs alone")
    if not have_transformer_engine():
        raise NotHereError("transformer_engine is not installed: training uses Megatron's own layers")
    with tempfile.TemporaryDirectory(prefix="trinity-bus-gpu-") as folder:
        beside_plain(options, figures, Path(folder))


if __name__ == "__main__":
    run_part(__doc__, measure)
