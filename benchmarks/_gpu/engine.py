"""vLLM's start, its pace, and new weights taken into the running engine, in place on a GPU.

The model has random weights. A version is its weights with each row turned by one, and the next one the weights as they
were: answers that are being drawn meanwhile must end, the first version must change how likely a given text is, and the
second must change it back. Both come from a server in this process by ``memory``.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks._gpu.figures import Figures, run_part
from benchmarks._gpu.sizes import SIZES, Size
from benchmarks._records import announce
from benchmarks._tiny_model import make_tiny_qwen3
from schemas import Sampling
from trinity_bus.config import ExplorerSettings
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.weights.pull.server import WeightServer

_MAX_LENGTH = 256
_SHARE = 0.5
"""Of the GPU's memory."""
_TEXT = list(range(3, 67))
_SAME = 0.1
"""How much a token's log-probability may differ between two computations with the same weights, in bfloat16."""
_BUSY = 4
"""Requests under way while weights come."""


async def pace(engine: InferenceEngine, size: Size) -> float:
    sampling = Sampling(max_tokens=size.tokens, ignore_eos=True)
    began = engine.tokens_generated, time.perf_counter()
    await asyncio.gather(*(engine.generate([3 + i, 4, 5], sampling) for i in range(size.requests)))
    return (engine.tokens_generated - began[0]) / (time.perf_counter() - began[1])


def farthest(ones: list[float], others: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(ones, others, strict=True))


async def versions(
    engine: InferenceEngine, model: Path, options: argparse.Namespace, size: Size, figures: Figures
) -> None:
    server = WeightServer(dtype=options.dtype)
    weights = load_file(model / "model.safetensors")
    turned = {name: torch.roll(tensor, 1, -1) for name, tensor in weights.items()}
    before = await engine.score(_TEXT, 1)
    scores, outcomes = [], []
    for version, tensors in enumerate((turned, weights), start=1):
        checksum = await asyncio.to_thread(server.stage, version, tensors.items())
        announced = announce(version, checksum, server.address, "memory", "explorer-0")
        server.admit(announced)
        sampling = Sampling(max_tokens=size.tokens, ignore_eos=True)
        async with asyncio.TaskGroup() as drawn:
            for i in range(_BUSY):
                drawn.create_task(engine.generate([3 + i, 4, 5], sampling))
            outcomes.append(await engine.sync_weights(announced, announced.members[0]))
        scores.append(await engine.score(_TEXT, 1))
    server.close()
    for name in ("control", "transfer", "verify", "prepare", "pause"):
        taken = statistics.median(getattr(outcome, f"{name}_s") for outcome in outcomes)
        figures.row(f"a version of {outcomes[0].nbytes / 1e9:.2g} GB: {name}", taken, "s", better="lower")
    changed, back = farthest(before, scores[0]), farthest(before, scores[1])
    figures.row("log-probabilities: change by a version", changed, "")
    figures.row("log-probabilities: left of it when the weights are back", back, "", better="lower")
    if not back < _SAME < changed:
        raise RuntimeError(f"with the weights of before, a text is not as likely as before: {back:.3g}, {changed:.3g}")


async def look(options: argparse.Namespace, figures: Figures, folder: Path) -> None:
    size = SIZES[options.size]
    model = make_tiny_qwen3(folder, seed=0, shape=size.engine)
    settings = ExplorerSettings(
        name="explorer-0",
        model_path=str(model),
        dtype=options.dtype,
        max_model_len=_MAX_LENGTH,
        max_num_seqs=size.requests,
        gpu_memory_utilization=_SHARE,
        seed=0,
    )
    engine = InferenceEngine(settings)
    began = time.perf_counter()
    await engine.start()
    figures.row("start", time.perf_counter() - began, "s", better="lower")
    try:
        began = time.perf_counter()
        await engine.generate([3, 4, 5], Sampling(max_tokens=1))
        figures.row("first token", time.perf_counter() - began, "s", better="lower")
        await pace(engine, size)
        figures.row(f"{size.requests} requests at a time", await pace(engine, size), "tokens/s")
        await versions(engine, model, options, size, figures)
    finally:
        await engine.stop()


def measure(options: argparse.Namespace, figures: Figures) -> None:
    with tempfile.TemporaryDirectory(prefix="trinity-bus-gpu-") as folder:
        asyncio.run(look(options, figures, Path(folder)))


if __name__ == "__main__":
    run_part(__doc__, measure)
