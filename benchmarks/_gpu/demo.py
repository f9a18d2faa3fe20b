"""The demo, with one explorer that shares the first GPU with the trainer, for a few steps."""

import argparse
import os
from dataclasses import replace

from benchmarks import demo
from benchmarks._demos import run_demo
from benchmarks._gpu.figures import Figures

STEPS = 20
LIMIT_S = 110.0
_KEPT = ("held-out reward", "time to first reward", "everything", "steps", "a step")


def measure(options: argparse.Namespace, figures: Figures) -> None:
    given = {}
    if options.device == "cuda":
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        given["CUDA_VISIBLE_DEVICES"] = first
    asked = ("--explorers", "1", "--steps", str(STEPS), "--limit", str(LIMIT_S))
    summary, _ = run_demo(*asked, environment=given)
    for row in demo.rows(summary):
        if row.metric.startswith(_KEPT):
            # The goals are those of a whole demo, on two cores.
            kept = replace(row, goal=None)
            figures.row(kept.metric, kept.value, kept.unit, better=kept.better)
