"""An engine on two GPUs (``explorer.tensor_parallel_size``): its pace, and log-probabilities beside those of one."""

import argparse

from benchmarks._gpu.drawing import draw, judge, started
from benchmarks._gpu.figures import Figures, run_part
from benchmarks._gpu.sizes import SIZES
from benchmarks._tiny_model import make_tiny_qwen3


async def measure(options: argparse.Namespace, figures: Figures) -> None:
    size = SIZES[options.size]
    model = make_tiny_qwen3(options.folder, seed=0, shape=size.engine)
    async with started(model, options.dtype, size, tensor_parallel_size=2) as engine:
        answers = await draw(engine, size, figures, "two GPUs")
    async with started(model, options.dtype, size) as engine:
        await draw(engine, size, figures, "one GPU")
        await judge(engine, answers, figures, "two GPUs by one")


if __name__ == "__main__":
    run_part(__doc__, measure, not_on_cpu="an engine over two ranks is for GPUs")
