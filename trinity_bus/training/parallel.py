"""Process groups: one process alone, or one of many.

Alone, the rendezvous is in memory and gloo listens on the loopback interface only. Among many, either the caller says
which one this is and where all meet (the trainer service does, see ``ranks``; gloo listens on the loopback interface
then, too), or ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT`` come from the environment,
as launchers such as ``torchrun`` set them.

Tensor parallelism splits layers over neighbouring ranks, pipeline parallelism gives stretches of layers (*stages*) to
ranks that are far apart, and what remains of the world is data parallelism::

    rank = tensor_rank + tensor_parallel * (data_rank + data_parallel * pipeline_rank)

Every rank must then make the same calls on its engine, in the same order and with the same samples. Gloo on CPUs, NCCL
(and gloo for host tensors) on GPUs.
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
from trinity_bus.training.rank_protocol import LIMIT_S

TIMEOUT = timedelta(seconds=LIMIT_S)
"""How long a collective may wait for the others before it fails."""


@dataclass(frozen=True, slots=True)
class World:
    """The processes that train together."""

    rank: int = 0
    """Of this one."""
    world_size: int = 1
    local_rank: int = 0
    """Among those on this machine; says which GPU is this process's."""
    store: dist.Store | None = None
    """Where they meet, all of them on this machine. Unset: in memory for one process, else where the environment says.
    """

    @property
    def on_this_machine(self) -> bool:
        """Whether no process is known to be on another one."""
        return self.world_size == 1 or self.store is not None


def world_of_environment() -> World:
    """Return the world that a launcher describes, or a process alone.

    Raises:
        ParallelError: A variable is no number.
    """
    return World(_from_environment("RANK", 0), _from_environment("WORLD_SIZE", 1), _from_environment("LOCAL_RANK", 0))


@dataclass(frozen=True, slots=True)
class Layout:
    """Where this process stands."""

    rank: int
    world_size: int
    tensor_parallel: int
    device: torch.device
    pipeline_parallel: int = 1

    @property
    def data_parallel(self) -> int:
        """How many ranks hold the same shard of the model."""
        return self.world_size // (self.tensor_parallel * self.pipeline_parallel)

    @property
    def data_rank(self) -> int:
        """This rank's place among them."""
        return self.rank // self.tensor_parallel % self.data_parallel

    @property
    def pipeline_rank(self) -> int:
        """Which stretch of the model's layers this rank holds."""
        return self.rank // (self.tensor_parallel * self.data_parallel)

    @property
    def first_stage(self) -> bool:
        """Whether this rank holds the embedding."""
        return self.pipeline_rank == 0

    @property
    def last_stage(self) -> bool:
        """Whether this rank holds the output layer, and computes losses."""
        return self.pipeline_rank == self.pipeline_parallel - 1

    @property
    def pipeline_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold the stages of one model, in order; None where there is one stage."""
        if self.pipeline_parallel == 1:
            return None
        group: dist.ProcessGroup = parallel_state.get_pipeline_model_parallel_group()
        return group

    def rank_of_stage(self, stage: int) -> int:
        """Return the rank that holds this stage of this rank's model."""
        return self.tensor_rank + self.tensor_parallel * (self.data_rank + self.data_parallel * stage)

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


def initialize(
    tensor_parallel: int = 1, pipeline_parallel: int = 1, *, seed: int = 0, world: World | None = None
) -> Layout:
    """Join the world's process groups. A second call with the same layout joins nothing anew.

    Args:
        tensor_parallel: Over how many ranks each layer is split.
        pipeline_parallel: Over how many ranks the layers are distributed.
        seed: For the generators of model-parallel layers on GPUs.
        world: Unset: the one that the environment describes.

    Raises:
        ParallelError: The world is not a multiple of the two, or groups of another shape exist already.
    """
    world = world or world_of_environment()
    rank, world_size = world.rank, world.world_size
    if world_size % (tensor_parallel * pipeline_parallel) or rank >= world_size:
        raise ParallelError(
            f"rank {rank} of WORLD_SIZE={world_size} with tensor_parallel={tensor_parallel} and "
            f"pipeline_parallel={pipeline_parallel}: the world must be a multiple of their product, and ranks lie "
            "below it"
        )
    device = torch.device("cpu") if on_cpu() else torch.device("cuda", world.local_rank)
    if not on_cpu():
        torch.cuda.set_device(device)
    with _loopback_only() if world.on_this_machine else contextlib.nullcontext():
        if not dist.is_initialized():
            dist.init_process_group(
                backend="gloo" if on_cpu() else "cpu:gloo,cuda:nccl",
                store=dist.HashStore() if world_size == 1 else world.store,
                rank=rank,
                world_size=world_size,
                timeout=TIMEOUT,
            )
        if not parallel_state.model_parallel_is_initialized():
            parallel_state.initialize_model_parallel(
                tensor_model_parallel_size=tensor_parallel,
                pipeline_model_parallel_size=pipeline_parallel,
                create_gloo_process_groups=not on_cpu(),
            )
            if not on_cpu():
                model_parallel_cuda_manual_seed(seed)
    existing = (
        parallel_state.get_tensor_model_parallel_world_size(),
        parallel_state.get_pipeline_model_parallel_world_size(),
    )
    if existing != (tensor_parallel, pipeline_parallel):
        raise ParallelError(
            f"process groups with (tensor_parallel, pipeline_parallel) = {existing} exist in this process; "
            f"{(tensor_parallel, pipeline_parallel)} was asked for"
        )
    return Layout(
        rank=rank,
        world_size=world_size,
        tensor_parallel=tensor_parallel,
        device=device,
        pipeline_parallel=pipeline_parallel,
    )


def shut_down() -> None:
    """Leaves the process groups; nothing happens where there are none."""
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def initialized(tensor_parallel: int = 1, pipeline_parallel: int = 1, *, seed: int = 0) -> Iterator[Layout]:
    """:func:`initialize` on entry, :func:`shut_down` on exit."""
    layout = initialize(tensor_parallel, pipeline_parallel, seed=seed)
    try:
        yield layout
    finally:
        shut_down()
