"""Process groups: one process alone, or one of many started by a launcher such as ``torchrun``.

Alone, the rendezvous is in memory and gloo listens on the loopback interface only. Among many, ``RANK``,
``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT`` come from the environment, as launchers set them.
Tensor parallelism splits layers over neighbouring ranks; what remains of the world is data parallelism. Every rank must
then make the same calls on its engine, in the same order and with the same samples. Gloo on CPUs, NCCL (and gloo for
host tensors) on GPUs.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from trinity_bus.training.cpu_platform import on_cpu
from trinity_bus.training.errors import ParallelError
from trinity_bus.training.megatron import model_parallel_cuda_manual_seed, parallel_state

TIMEOUT = timedelta(minutes=10)
"""How long a collective may wait for the others before it fails."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where this process stands."""

    rank: int
    world_size: int
    tensor_parallel: int
    device: torch.device

    @property
    def data_parallel(self) -> int:
        """How many ranks hold the same shard of the model."""
        return self.world_size // self.tensor_parallel

    @property
    def data_rank(self) -> int:
        """This rank's place among them."""
        return self.rank // self.tensor_parallel

    @property
    def tensor_rank(self) -> int:
        """Which shard of each layer this rank holds."""
        return self.rank % self.tensor_parallel

    @property
    def tensor_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold the shards of one model; None where there is one shard."""
        if self.tensor_parallel == 1:
            return None
        group: dist.ProcessGroup = parallel_state.get_tensor_model_parallel_group()
        return group

    @property
    def data_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold this shard; None where this is the only one."""
        if self.data_parallel == 1:
            return None
        group: dist.ProcessGroup = parallel_state.get_data_parallel_group()
        return group


def _from_environment(name: str, default: int) -> int:
    value = os.environ.get(name, str(default))
    if not value.isdigit():
        raise ParallelError(f"{name}={value!r}: expected a number, as a launcher such as torchrun sets it")
    return int(value)


@contextlib.contextmanager
def _loopback_only() -> Iterator[None]:
    """Within, gloo's groups listen on the loopback interface, whatever the host's name resolves to."""
    name = "GLOO_SOCKET_IFNAME"
    if name in os.environ or sys.platform != "linux":
        yield
        return
    os.environ[name] = "lo"
    try:
        yield
    finally:
        del os.environ[name]


def initialize(tensor_parallel: int = 1, *, seed: int = 0) -> Layout:
    """Joins the process groups that the environment describes. A second call with the same layout joins nothing anew.

    Args:
        tensor_parallel: Over how many ranks each layer is split.
        seed: For the generators of model-parallel layers on GPUs.

    Raises:
        ParallelError: The world is not a multiple of ``tensor_parallel``, or groups of another shape exist already.
    """
    rank, world_size = _from_environment("RANK", 0), _from_environment("WORLD_SIZE", 1)
    if world_size % tensor_parallel or rank >= world_size:
        raise ParallelError(
            f"rank {rank} of WORLD_SIZE={world_size} with tensor_parallel={tensor_parallel}: the world must be a "
            "multiple of tensor_parallel, and ranks lie below it"
        )
    device = torch.device("cpu") if on_cpu() else torch.device("cuda", _from_environment("LOCAL_RANK", 0))
    if not on_cpu():
        torch.cuda.set_device(device)
    with _loopback_only() if world_size == 1 else contextlib.nullcontext():
        if not dist.is_initialized():
            dist.init_process_group(
                backend="gloo" if on_cpu() else "cpu:gloo,cuda:nccl",
                store=dist.HashStore() if world_size == 1 else None,
                rank=rank,
                world_size=world_size,
                timeout=TIMEOUT,
            )
        if not parallel_state.model_parallel_is_initialized():
            parallel_state.initialize_model_parallel(
                tensor_model_parallel_size=tensor_parallel, create_gloo_process_groups=not on_cpu()
            )
            if not on_cpu():
                model_parallel_cuda_manual_seed(seed)
    existing = parallel_state.get_tensor_model_parallel_world_size()
    if existing != tensor_parallel:
        raise ParallelError(
            f"process groups with tensor_parallel={existing} exist in this process; {tensor_parallel} was asked for"
        )
    return Layout(rank=rank, world_size=world_size, tensor_parallel=tensor_parallel, device=device)


def shut_down() -> None:
    """Leaves the process groups; nothing happens where there are none."""
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def initialized(tensor_parallel: int = 1, *, seed: int = 0) -> Iterator[Layout]:
    """:func:`initialize` on entry, :func:`shut_down` on exit."""
    layout = initialize(tensor_parallel, seed=seed)
    try:
        yield layout
    finally:
        shut_down()
