"""The demo, with one explorer that shares the first GPU with the trainer, for a few steps.

The engine computes eagerly and takes a third of the memory, whatever a mesh of its own would be given.
"""

import argparse
import os
from dataclasses import replace

from benchmarks import demo
from benchmarks._gpu.figures import Figures, run_part
from benchmarks.start import run_demo
from trinity_bus.config import env_name

STEPS = 20
LIMIT_S = 110.0
"""Of the demo itself, which then tells what it was waiting for."""
_SHARE = 0.3
_KEPT = ("held-out reward", "time to first reward", "everything", "steps", "a step")


def measure(options: argparse.Namespace, figures: Figures) -> None:
    """Run it."""
    given = {env_name("explorer.gpu_memory_utilization"): str(_SHARE), env_name("explorer.compilation"): "off"}
    if options.device == "cuda":
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        given["CUDA_VISIBLE_DEVICES"] = first
    asked = ("--explorers", "1", "--steps", str(STEPS), "--limit", str(LIMIT_S))
    summary, _ = run_demo(given, *asked)
    for row in demo.rows(summary):
        if row.metric.startswith(_KEPT):
            # The goals are those of a whole demo, on two cores.
            kept = replace(row, goal=None)
            figures.row(kept.metric, kept.value, kept.unit, better=kept.better)


if __name__ == "__main__":
    run_part(__doc__, measure)
