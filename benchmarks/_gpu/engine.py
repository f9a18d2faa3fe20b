"""vLLM's start, its pace, and new weights taken into the running engine, in place on a GPU.

The model has random weights. A version is its weights with each row turned by one, and the next one the weights as they
were: answers that are being drawn meanwhile must end, the first version must change how likely a given text is, and the
second must change it back. Both come from a server in this process by ``memory``.
"""

import argparse
import asyncio
import statistics
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks._gpu.drawing import draw, prompt, started
from benchmarks._gpu.figures import Figures
from benchmarks._gpu.sizes import SIZES, Size
from benchmarks._records import announce
from benchmarks._tiny_model import make_tiny_qwen3
from schemas import Sampling
from trinity_bus.inference.engine import InferenceEngine
from trinity_bus.weights.pull.server import WeightServer

_TEXT = list(range(3, 67))
_SAME = 0.1
"""How much a token's log-probability may differ between two computations with the same weights, in bfloat16."""
_BUSY = 4


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
                drawn.create_task(engine.generate(prompt(i), sampling))
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


async def measure(options: argparse.Namespace, figures: Figures) -> None:
    size = SIZES[options.size]
    model = make_tiny_qwen3(options.folder, seed=0, shape=size.engine)
    began = time.perf_counter()
    async with started(model, options.dtype, size, name="explorer-0") as engine:
        figures.row("start", time.perf_counter() - began, "s", better="lower")
        began = time.perf_counter()
        await engine.generate(prompt(0), Sampling(max_tokens=1))
        figures.row("first token", time.perf_counter() - began, "s", better="lower")
        await draw(engine, size, figures)
        await versions(engine, model, options, size, figures)
