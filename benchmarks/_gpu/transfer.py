"""A version from the trainer's device into another process's: over a server's memory, or over a link between two GPUs.

Real: staging, hashing, the server or the publisher of links, the receiver; and the copy into tensors that the other
process has on its device, as loading in place does it. There is no mesh, and no engine. With ``memory`` both processes
are on the first GPU; NCCL refuses that, so with ``nccl`` the other one has the second.

The plain copy is what the way allows: from host memory that the driver knows to the device, or from one GPU to the
other.
"""

import argparse
import os
import statistics
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from benchmarks._children import Side
from benchmarks._gpu.figures import Figures
from benchmarks._gpu.matrix import synchronize
from benchmarks._gpu.sizes import SIZES
from benchmarks._records import announce
from trinity_bus.weights.pull.server import WeightServer
from trinity_bus.weights.receiver import WeightReceiver
from trinity_bus.weights.transport import Source, source_of
from trinity_bus.weights.vllm.plugin import die_with_parent

LIMIT_S = 20.0
_PARTS = 16


@dataclass(frozen=True, slots=True)
class Taken:
    transfer_s: float
    verify_s: float
    load_s: float
    digits: int
    """Of the bytes on its device; see :func:`digits_of`."""


def visible_gpu(number: int) -> str:
    """Return the name of one of the GPUs that this process sees, for a process that is to see that one alone."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return str(number) if seen is None else seen.split(",")[number].strip()


def digits_of(tensor: torch.Tensor) -> int:
    return int(tensor.reshape(-1).view(torch.uint8).sum(dtype=torch.int64))


def member(pipe: Connection, device: str, gpu: str | None) -> None:
    die_with_parent()
    if gpu is not None:
        # Nothing has asked CUDA for anything yet in this process.
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    receiver = WeightReceiver()
    weights: dict[str, torch.Tensor] = {}
    pipe.send("here")
    while (wanted := pipe.recv()) is not None:
        pipe.send(_take(receiver, wanted, weights, device))
    receiver.close()


def _take(receiver: WeightReceiver, wanted: Source, weights: dict[str, torch.Tensor], device: str) -> Taken | str:
    ended = threading.Event()
    receiver.start(wanted, lambda _: ended.set())
    ended.wait(LIMIT_S)
    progress = receiver.progress
    if progress.state != "ready":
        receiver.cancel()
        return progress.error or f"nothing has come within {LIMIT_S:g} s"
    began = time.perf_counter()
    for name, tensor in receiver.take():
        weights.setdefault(name, torch.empty_like(tensor, device=device)).copy_(tensor)
    synchronize(device)
    return Taken(
        transfer_s=progress.received_at - progress.posted_at,
        verify_s=progress.verified_at - progress.received_at,
        load_s=time.perf_counter() - began,
        digits=sum(digits_of(weight) for weight in weights.values()),
    )


def plain_copy(nbytes: int, method: str, device: str) -> float:
    """Return the seconds of the second of two copies of so many bytes, the way that a version takes."""
    if method == "nccl":
        here, there = (torch.zeros(nbytes, dtype=torch.uint8, device=f"cuda:{i}") for i in range(2))
    else:
        here = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=device == "cuda")
        there = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    took = 0.0
    for _ in range(2):
        began = time.perf_counter()
        there.copy_(here)
        synchronize(device)
        if method == "nccl":
            torch.cuda.synchronize(1)
        took = time.perf_counter() - began
    return took


def measure(options: argparse.Namespace, figures: Figures) -> None:
    size, device, method = SIZES[options.size], options.device, options.method
    nbytes = size.transfer_mib << 20
    dtype = getattr(torch, options.dtype)
    shape = (_PARTS, nbytes // _PARTS // dtype.itemsize)
    bucket = size.bucket_mib << 20
    gpu = None if device == "cpu" else visible_gpu(1 if method == "nccl" else 0)
    # Before anything here has asked CUDA for something, or started a thread; what is imported need not be again.
    other = Side(member, device, gpu, start="fork")
    other.hear()
    server = WeightServer(bucket_bytes=bucket, timeout_s=LIMIT_S, method=method)
    found: list[tuple[float, Taken]] = []
    for version in range(size.rounds + 1):
        weights = torch.randn(shape, device=device).to(dtype)
        synchronize(device)
        began = time.perf_counter()
        checksum = server.stage(version, ((f"{i}", row) for i, row in enumerate(weights)))
        staged_s = time.perf_counter() - began
        announced = announce(version, checksum, server.address, method, "explorer-0")
        server.admit(announced)
        other.pipe.send(source_of(announced, "explorer-0", LIMIT_S))
        taken = other.pipe.recv()
        assert isinstance(taken, Taken), f"version {version} was not taken: {taken}"
        assert taken.digits == digits_of(weights), f"version {version} is not on the other's device what it was here"
        # The first one makes memory, and links.
        if version:
            found.append((staged_s, taken))
    other.pipe.send(None)
    other.process.join()
    server.close()
    columns = {
        "staging, with its hashes": [staged_s for staged_s, _ in found],
        "transfer": [taken.transfer_s for _, taken in found],
        "from the last byte until verified, and there": [taken.verify_s + taken.load_s for _, taken in found],
        "copy into the weights": [taken.load_s for _, taken in found],
        "a plain copy": [plain_copy(nbytes, method, device)],
    }
    figures.row("a version", nbytes / 1e9, "GB")
    for name, seconds in columns.items():
        figures.row(name, nbytes / 1e9 / statistics.median(seconds), "GB/s")
