"""Training with Transformer Engine's layers: a step beside the plain float32 engine's.

Where it is installed, Megatron's engine takes its layers, in the part ``training`` too; here it is known that it did.
"""

import argparse

from benchmarks._gpu.figures import Figures, NotHereError, run_part
from benchmarks._gpu.training import beside_plain
from trinity_bus.training.megatron.model import have_transformer_engine


def measure(options: argparse.Namespace, figures: Figures) -> None:
    if not have_transformer_engine():
        raise NotHereError("transformer_engine is not installed: training uses Megatron's own layers")
    beside_plain(options, figures)


if __name__ == "__main__":
    run_part(__doc__, measure, not_on_cpu="Transformer Engine computes on GPUs alone")
