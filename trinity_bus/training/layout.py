"""Which part of the work is whose: the arithmetic of ranks, and the groups of those that belong together.

Tensor parallelism splits layers over neighbouring ranks, pipeline parallelism gives stretches of layers (*stages*) to
ranks that are far apart, and data parallelism repeats both, each with a shard of the batch::

    rank = tensor_rank + tensor_parallel * (data_rank + data_parallel * pipeline_rank)
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Layout:
    """Where this process stands."""

    rank: int
    world_size: int
    tensor_parallel: int
    device: torch.device
    pipeline_parallel: int = 1

    @classmethod
    def alone(cls, device: torch.device) -> "Layout":
        """Return the layout of a process that trains by itself."""
        return cls(rank=0, world_size=1, tensor_parallel=1, device=device)

    @property
    def data_parallel(self) -> int:
        """How many ranks hold the same shard of the model."""
        return self.world_size // (self.tensor_parallel * self.pipeline_parallel)

    @property
    def tensor_rank(self) -> int:
        """Which shard of each layer this rank holds."""
        return self.rank % self.tensor_parallel

    @property
    def data_rank(self) -> int:
        """Which shard of each batch this rank trains on."""
        return self.data_rank_of(self.rank)

    def data_rank_of(self, rank: int) -> int:
        """Return which shard of each batch a rank of this world trains on."""
        return rank // self.tensor_parallel % self.data_parallel

    @property
    def pipeline_rank(self) -> int:
        """Which stretch of the model's layers this rank holds."""
        return self.rank // (self.tensor_parallel * self.data_parallel)

    def rank_of_stage(self, stage: int) -> int:
        """Return the rank that holds this stage of this rank's model."""
        return self.tensor_rank + self.tensor_parallel * (self.data_rank + self.data_parallel * stage)

    @property
    def first_stage(self) -> bool:
        """Whether this rank holds the embedding."""
        return self.pipeline_rank == 0

    @property
    def last_stage(self) -> bool:
        """Whether this rank holds the output layer, and computes losses."""
        return self.pipeline_rank == self.pipeline_parallel - 1

    @property
    def tensor_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold the shards of one model; None where there is one shard."""
        return self._group("tensor_model", self.tensor_parallel)

    @property
    def data_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold this shard; None where this is the only one."""
        return self._group("data", self.data_parallel)

    @property
    def pipeline_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold the stages of one model, in order; None where there is one stage."""
        return self._group("pipeline_model", self.pipeline_parallel)

    @staticmethod
    def _group(kind: str, ranks: int) -> dist.ProcessGroup | None:
        if ranks == 1:
            return None
        from trinity_bus.training.megatron import parallel_state

        group: dist.ProcessGroup = getattr(parallel_state, f"get_{kind}_parallel_group")()
        return group
