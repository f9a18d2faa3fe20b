"""The training step of Megatron's engine: tokens a second, model FLOPs utilization, memory.

The utilization is the share of the model's operations (``flops``) in what a product of two matrices reaches, in this
very process.

Last, a step of a tiny model beside that of the plain engine, which is transformers in float32: how far losses are from
each other, and how long gradients are over the other's. On a CPU both are float32.
"""

import argparse
import math
import statistics
import time

import torch

from benchmarks import training
from benchmarks._gpu.figures import Figures, NotHereError
from benchmarks._gpu.flops import flops_per_token
from benchmarks._gpu.matrix import peak, synchronize
from benchmarks._gpu.sizes import SIZES
from trinity_bus.sizing.memory import parameters
from trinity_bus.training.engines.megatron_engine import MegatronEngine
from trinity_bus.training.engines.torch_engine import TorchEngine
from trinity_bus.training.megatron.model import have_transformer_engine

_MFU = 0.45
"""What is expected of a model of more than a thousand million parameters."""
_SECONDS = 30.0


def throughput(options: argparse.Namespace, figures: Figures) -> None:
    load = SIZES[options.size].training
    reached = peak(options.device, options.dtype, options.size)
    settings = training.settings_of(load, training.make_model(load, options.folder / "large"))
    groups = training.make_groups(load)
    engine = MegatronEngine(settings.model_copy(update={"dtype": options.dtype}))
    tokens = sum(len(group.tokens) for group in groups)
    timings: list[float] = []
    for number in range(load.repeats + 1):
        synchronize(options.device)
        began = time.perf_counter()
        loss = engine.train_step(groups)["loss"]
        synchronize(options.device)
        took = time.perf_counter() - began
        if not math.isfinite(loss):
            raise RuntimeError(f"the loss of step {number} is {loss}")
        # The first one loads kernels, and makes memory.
        if number:
            timings.append(took)
        else:
            figures.row("first step", took, "s", better="lower")
        if sum(timings) > _SECONDS:
            break
    step = statistics.median(timings)
    done = tokens / step * flops_per_token(engine.shape, load.lengths[1]) / 1e12
    figures.row("parameters", parameters(engine.shape) / 1e6, "10^6")
    figures.row("a step", step, "s", better="lower")
    figures.row("throughput", tokens / step, "tokens/s")
    figures.row("model FLOPs", done, "TFLOP/s")
    goal = _MFU if options.size == "large" else None
    figures.row("MFU, of a product of two matrices", done / reached, "", goal=goal)
    if options.device == "cuda":
        figures.row("most memory", torch.cuda.max_memory_allocated() / 2**30, "GiB", better="lower")
    engine.leave()


def beside_plain(options: argparse.Namespace, figures: Figures) -> None:
    load = SIZES["tiny"].training
    settings = training.settings_of(load, training.make_model(load, options.folder / "tiny"))
    groups = training.make_groups(load)
    engine = MegatronEngine(settings.model_copy(update={"dtype": options.dtype}))
    ours, plain = (each.train_step(groups) for each in (engine, TorchEngine(settings)))
    engine.leave()
    figures.row("loss, less the plain float32 engine's", ours["loss"] - plain["loss"], "", better="lower")
    figures.row("gradients' norm, over the plain float32 engine's", ours["grad_norm"] / plain["grad_norm"], "")


def measure(options: argparse.Namespace, figures: Figures) -> None:
    if options.device == "cuda" and options.dtype == "bfloat16" and torch.cuda.get_device_capability() < (8, 0):
        raise NotHereError(f"{torch.cuda.get_device_name()} has no bfloat16: Ampere or newer has")
    torch.set_num_threads(training.THREADS)
    throughput(options, figures)
    beside_plain(options, figures)


def with_transformer_engine(options: argparse.Namespace, figures: Figures) -> None:
    """Where it is installed, Megatron's engine takes its layers, in ``measure`` too; here it is known that it did."""
    if not have_transformer_engine():
        raise NotHereError("transformer_engine is not installed: training uses Megatron's own layers")
    beside_plain(options, figures)
