"""Process groups: one process alone, or one of many.

Alone, the rendezvous is in memory. Among many, either the caller says which one this is and where all meet (see
``ranks``), or the environment does, as launchers such as ``torchrun`` set it. Where all are known to be on one machine,
gloo listens on the loopback interface only. Every rank must make the same calls on its engine, in the same order. Gloo
on CPUs, NCCL (and gloo for host tensors) on GPUs.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from trinity_bus.config import TrainerSettings
from trinity_bus.training.errors import ParallelError
from trinity_bus.training.layout import Layout
from trinity_bus.training.megatron import core
from trinity_bus.training.megatron.cpu_platform import on_cpu
from trinity_bus.training.ranks.launch import launch_of
from trinity_bus.training.ranks.rank_protocol import LIMIT_S

# How long a collective may wait for the others before it fails
TIMEOUT = timedelta(seconds=LIMIT_S)
# How many ranks Megatron's process groups have, as settings name them
_SIZES: Final = {
    "tensor_parallel": core.parallel_state.get_tensor_model_parallel_world_size,
    "pipeline_parallel": core.parallel_state.get_pipeline_model_parallel_world_size,
    "context_parallel": core.parallel_state.get_context_parallel_world_size,
    "expert_parallel": core.parallel_state.get_expert_model_parallel_world_size,
    "data_parallel": core.parallel_state.get_data_parallel_world_size,
}


@dataclass(frozen=True, slots=True)
class World:
    rank: int = 0
    world_size: int = 1
    # Among those on this machine; says which GPU is this process's
    local_rank: int = 0
    # Where they meet. Unset: in memory for one process, else where the environment says.
    store: dist.Store | None = None
    # Whether all are known to be on one machine
    on_this_machine: bool = False


def check_device(local_rank: int) -> None:
    if not on_cpu() and (gpus := torch.cuda.device_count()) <= local_rank:
        raise ParallelError(
            f"each rank needs a GPU of its own, and this machine has {gpus} for {local_rank + 1} or more: lower "
            "TRINITY_BUS_TRAINER__TENSOR_PARALLEL, __PIPELINE_PARALLEL or __DATA_PARALLEL"
        )


@contextlib.contextmanager
def _loopback_only() -> Iterator[None]:
    # Gloo's groups listen on the loopback interface, whatever the host's name resolves to
    name = "GLOO_SOCKET_IFNAME"
    if name in os.environ or sys.platform != "linux":
        yield
        return
    os.environ[name] = "lo"
    try:
        yield
    finally:
        del os.environ[name]


def initialize(settings: TrainerSettings, world: World | None = None) -> Layout:
    """Join the world's process groups, by default the environment's; once for the same layout."""
    if world is None:
        launch = launch_of(os.environ)
        world = World() if launch is None else World(launch.rank, launch.world_size, launch.local_rank)
    rank, world_size = world.rank, world.world_size
    asked = {name: getattr(settings, name) for name in _SIZES}
    if world_size != settings.ranks or rank >= world_size:
        raise ParallelError(
            f"rank {rank} of WORLD_SIZE={world_size} with {asked}: the world must have as many ranks as the product of "
            "tensor_parallel, pipeline_parallel, context_parallel and data_parallel, and ranks lie below it"
        )
    device = torch.device("cpu") if on_cpu() else torch.device("cuda", world.local_rank)
    if not on_cpu():
        torch.cuda.set_device(device)
    with _loopback_only() if world_size == 1 or world.on_this_machine else contextlib.nullcontext():
        if not dist.is_initialized():
            dist.init_process_group(
                backend="gloo" if on_cpu() else "cpu:gloo,cuda:nccl",
                store=dist.HashStore() if world_size == 1 else world.store,
                rank=rank,
                world_size=world_size,
                timeout=TIMEOUT,
            )
        if not core.parallel_state.model_parallel_is_initialized():
            core.parallel_state.initialize_model_parallel(
                tensor_model_parallel_size=settings.tensor_parallel,
                pipeline_model_parallel_size=settings.pipeline_parallel,
                context_parallel_size=settings.context_parallel,
                expert_model_parallel_size=settings.expert_parallel,
                create_gloo_process_groups=not on_cpu(),
            )
            if on_cpu():
                # Where tokens are split Megatron forks its CUDA generator around dropout: this one has nothing to fork.
                core.initialize_rng_tracker(inference_rng_tracker=True)
            else:
                core.model_parallel_cuda_manual_seed(settings.seed)
    existing = {name: size() for name, size in _SIZES.items()}
    if existing != asked:
        raise ParallelError(f"process groups with {existing} exist in this process; {asked} was asked for")
    return Layout.of(settings, rank=rank, device=device)


def shut_down() -> None:
    if core.parallel_state.model_parallel_is_initialized():
        core.parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()
