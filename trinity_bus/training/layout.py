"""Which part of the work is whose: the arithmetic of ranks, and the groups of those that belong together.

Tensor parallelism splits layers over neighbouring ranks, context parallelism splits samples, data parallelism repeats
both, each with a shard of the batch, and pipeline parallelism gives a stretch of layers, its *stage*, to each of ranks
that are far apart::

    copy = context_rank + context_parallel * (data_rank + data_parallel * pipeline_rank)
    rank = tensor_rank + tensor_parallel * copy

Experts are distributed over neighbours among the ranks that hold the same shard of the layers::

    expert_rank = copy % expert_parallel
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from trinity_bus.config import TrainerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    rank: int
    world_size: int
    device: torch.device
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    pipeline_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1

    @classmethod
    def alone(cls, device: torch.device) -> "Layout":
        return cls(rank=0, world_size=1, device=device)

    @classmethod
    def of(cls, settings: TrainerSettings, *, rank: int, device: torch.device) -> "Layout":
        return cls(
            rank=rank,
            world_size=settings.ranks,
            device=device,
            tensor_parallel=settings.tensor_parallel,
            sequence_parallel=settings.sequence_parallel,
            pipeline_parallel=settings.pipeline_parallel,
            context_parallel=settings.context_parallel,
            expert_parallel=settings.expert_parallel,
        )

    @property
    def data_parallel(self) -> int:
        """How many ranks train on samples of their own, with the same shard of the model."""
        return self._of_a_stage // (self.tensor_parallel * self.context_parallel)

    @property
    def tokens_multiple(self) -> int:
        """What the tokens of a sequence must be a multiple of: context-parallel ranks hold two equal parts each."""
        sequence = self.tensor_parallel if self.sequence_parallel else 1
        return sequence if self.context_parallel == 1 else sequence * 2 * self.context_parallel

    @property
    def passes_alone(self) -> bool:
        """Whether a rank meets no other within a pass, but when it has run all of its micro-batches."""
        return self.world_size == self.data_parallel and self.expert_parallel == 1

    @property
    def tensor_rank(self) -> int:
        return self.rank % self.tensor_parallel

    @property
    def context_rank(self) -> int:
        return self.rank // self.tensor_parallel % self.context_parallel

    @property
    def expert_rank(self) -> int:
        return self.rank // self.tensor_parallel % self.expert_parallel

    @property
    def data_rank(self) -> int:
        return self.data_rank_of(self.rank)

    def data_rank_of(self, rank: int) -> int:
        return rank // (self.tensor_parallel * self.context_parallel) % self.data_parallel

    @property
    def pipeline_rank(self) -> int:
        return self.rank // self._of_a_stage

    def rank_of_stage(self, stage: int) -> int:
        return self.rank % self._of_a_stage + stage * self._of_a_stage

    def rank_of_experts(self, expert_rank: int) -> int:
        return self.rank + (expert_rank - self.expert_rank) * self.tensor_parallel

    @property
    def tensor_group(self) -> dist.ProcessGroup | None:
        return self._group("tensor_model", self.tensor_parallel)

    @property
    def context_group(self) -> dist.ProcessGroup | None:
        return self._group("context", self.context_parallel)

    @property
    def data_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold this shard and this part of other samples."""
        return self._group("data", self.data_parallel)

    @property
    def copies_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold this shard, whatever part of whichever samples."""
        return self._group("data", self.context_parallel * self.data_parallel, with_context_parallel=True)

    @property
    def expert_group(self) -> dist.ProcessGroup | None:
        return self._group("expert_model", self.expert_parallel)

    @property
    def pipeline_group(self) -> dist.ProcessGroup | None:
        return self._group("pipeline_model", self.pipeline_parallel)

    @property
    def _of_a_stage(self) -> int:
        return self.world_size // self.pipeline_parallel

    @staticmethod
    def _group(kind: str, ranks: int, **options: bool) -> dist.ProcessGroup | None:
        # None where this rank is the only one
        if ranks == 1:
            return None
        from trinity_bus.training.megatron.core import parallel_state

        group: dist.ProcessGroup = getattr(parallel_state, f"get_{kind}_parallel_group")(**options)
        return group
