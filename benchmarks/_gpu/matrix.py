"""A product of two square matrices: what the device reaches where nothing stands in its way."""

import argparse
import time

import torch

from benchmarks._gpu.figures import Figures
from benchmarks._gpu.sizes import SIZES
from trinity_bus.sizing.hardware import GPUS

_SECONDS = 1.5
_AT_ONCE = 5


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def tflops(device: str, dtype: str, edge: int, seconds: float) -> float:
    """Return the most operations a second, in 10^12, that products of matrices of this size reach."""
    left, right = (torch.randn(edge, edge, device=device).to(getattr(torch, dtype)) for _ in range(2))
    out = torch.empty_like(left)
    best, until = float("inf"), None
    while until is None or time.perf_counter() < until:
        synchronize(device)
        began = time.perf_counter()
        for _ in range(_AT_ONCE):
            torch.matmul(left, right, out=out)
        synchronize(device)
        if until is None:
            # The first ones load kernels.
            until = time.perf_counter() + seconds
        else:
            best = min(best, (time.perf_counter() - began) / _AT_ONCE)
    if best == float("inf"):
        raise RuntimeError(f"products of {edge} x {edge} take longer than {seconds:g} s")
    return 2 * edge**3 / best / 1e12


def peak(device: str, dtype: str, size: str) -> float:
    seconds = _SECONDS if device == "cuda" else 0.1
    return max(tflops(device, dtype, edge, seconds) for edge in SIZES[size].edges)


def measure(options: argparse.Namespace, figures: Figures) -> None:
    reached = peak(options.device, options.dtype, options.size)
    figures.row("product of two matrices", reached, "TFLOP/s")
    name = torch.cuda.get_device_name() if options.device == "cuda" else ""
    sheet = next((gpu.tflops for key, gpu in GPUS.items() if key in name), None)
    if sheet is not None and options.dtype == "bfloat16":
        figures.row("of the data sheet's", reached / sheet, "")
