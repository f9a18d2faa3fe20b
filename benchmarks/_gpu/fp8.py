"""Rollouts in FP8 (``explorer.quantization``): their pace, and how far their log-probabilities are from bfloat16's.

An engine that makes FP8 of the weights draws, and then one that does not draws, too, and says how likely it would have
been to draw what the first one drew: what a trainer in bfloat16 sees as mismatch.
"""

import argparse

import torch

from benchmarks._gpu.drawing import draw, judge, started
from benchmarks._gpu.figures import Figures, NotHereError, run_part
from benchmarks._gpu.sizes import SIZES
from benchmarks._tiny_model import make_tiny_qwen3


async def measure(options: argparse.Namespace, figures: Figures) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        raise NotHereError(f"{torch.cuda.get_device_name()} does not multiply in FP8: Ada, Hopper or newer does")
    size = SIZES[options.size]
    model = make_tiny_qwen3(options.folder, seed=0, shape=size.engine)
    async with started(model, options.dtype, size, quantization="fp8") as engine:
        answers = await draw(engine, size, figures, "FP8")
    async with started(model, options.dtype, size) as engine:
        own = await draw(engine, size, figures, options.dtype)
        await judge(engine, own, figures, f"{options.dtype} by itself")
        await judge(engine, answers, figures, f"FP8 by {options.dtype}")


if __name__ == "__main__":
    run_part(__doc__, measure, not_on_cpu="FP8 rollouts are for GPUs")
