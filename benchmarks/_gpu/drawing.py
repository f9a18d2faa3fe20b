"""An engine beside another: one draws, and the other says how likely it would have been to draw the same.

FP8 (``explorer.quantization``) beside bfloat16, which is what a trainer in bfloat16 sees as mismatch; and two GPUs
(``explorer.tensor_parallel_size``) beside one.
"""

import argparse
import asyncio
import math
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks._gpu.figures import Figures, NotHereError
from benchmarks._gpu.sizes import SIZES, Size
from benchmarks._tiny_model import make_tiny_qwen3
from schemas import Sampling
from trinity_bus.chat.messages import Completion
from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.engine import InferenceEngine

MAX_LENGTH = 256
_SHARE = 0.5


@asynccontextmanager
async def started(model: Path, dtype: str, size: Size, **more: Any) -> AsyncIterator[InferenceEngine]:
    engine = InferenceEngine(
        ExplorerSettings(
            model_path=str(model),
            dtype=dtype,
            max_model_len=MAX_LENGTH,
            max_num_seqs=size.requests,
            gpu_memory_utilization=_SHARE,
            seed=0,
            **more,
        )
    )
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def prompt(number: int) -> list[int]:
    return [3 + number, 4, 5]


async def draw(engine: InferenceEngine, size: Size, figures: Figures, name: str = "") -> list[Completion]:
    """Draw many answers at a time, twice, and tell the pace of the second time."""
    sampling = Sampling(max_tokens=size.tokens, ignore_eos=True)
    drawn: list[list[Completion]] = []
    took = 0.0
    for _ in range(2):
        began = time.perf_counter()
        drawn = await asyncio.gather(*(engine.generate(prompt(i), sampling) for i in range(size.requests)))
        took = time.perf_counter() - began
    what = f"{name}: " if name else ""
    figures.row(f"{what}{size.requests} requests at a time", size.requests * size.tokens / took, "tokens/s")
    return [answers[0] for answers in drawn]


async def judge(engine: InferenceEngine, answers: Sequence[Completion], figures: Figures, name: str) -> None:
    """Tell how far the log-probabilities with which answers were drawn are from those that an engine gives them."""
    apart: list[float] = []
    for number, answer in enumerate(answers):
        asked = prompt(number)
        scores = await engine.score([*asked, *answer.token_ids], len(asked))
        apart += [score - drawn for score, drawn in zip(scores, answer.logprobs, strict=True)]
    figures.row(f"{name}: log-probabilities apart, mean", statistics.fmean(map(abs, apart)), "nats", better="lower")
    figures.row(f"{name}: log-probabilities apart, most", max(map(abs, apart)), "nats", better="lower")
    figures.row(f"{name}: mismatch, k3", statistics.fmean(math.expm1(d) - d for d in apart), "nats", better="lower")


async def fp8(options: argparse.Namespace, figures: Figures) -> None:
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


async def two_gpus(options: argparse.Namespace, figures: Figures) -> None:
    size = SIZES[options.size]
    model = make_tiny_qwen3(options.folder, seed=0, shape=size.engine)
    async with started(model, options.dtype, size, tensor_parallel_size=2) as engine:
        answers = await draw(engine, size, figures, "two GPUs")
    async with started(model, options.dtype, size) as engine:
        await draw(engine, size, figures, "one GPU")
        await judge(engine, answers, figures, "two GPUs by one")
