"""Training with Megatron-core: one rank of any layout; see ``parallel``, and ``multi_rank_engine`` for several."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from trinity_bus.config import TrainerSettings
from trinity_bus.config.mesh import computed_dtype
from trinity_bus.training.megatron import parallel
from trinity_bus.training.megatron.cpu_platform import on_cpu
from trinity_bus.training.megatron.optimizer import AdamW
from trinity_bus.training.megatron.runner import MegatronPasses
from trinity_bus.training.steps.packing import PackedArrays, TrainSample


class MegatronEngine(MegatronPasses):
    """``world`` says which rank it is, by default the environment does: it joins the process groups where need be."""

    NAME: ClassVar[str] = "megatron"

    def __init__(self, settings: TrainerSettings, world: parallel.World | None = None) -> None:
        super().__init__(settings, layout=parallel.initialize(settings, world))

    @staticmethod
    def dtype_of(settings: TrainerSettings) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, computed_dtype(settings.dtype, on_cpu=on_cpu()))
        return dtype

    def _build(self) -> None:
        super()._build()
        self._optimizer = AdamW(self.network, self.settings, self.dtype)

    def leave(self) -> None:
        super().leave()
        # For good and for all engines of this process
        parallel.shut_down()

    def _accumulate(self, samples: Sequence[TrainSample], token_weight: float) -> tuple[torch.Tensor, int]:
        def loss(indices: Sequence[int], arrays: PackedArrays, hidden: torch.Tensor) -> Any:
            mine = [samples[i] for i in indices]
            value, metrics = self._loss(mine, arrays, *self.token_logprobs(hidden, arrays))
            # Three values: Megatron then neither scales the loss nor divides by the second, a token count.
            return value, torch.ones((), dtype=torch.int, device=value.device), metrics

        self.network.zero_grad_buffer()
        self._optimizer.zero_grad()
        outputs = self.run(samples, loss, token_weight=token_weight, forward_only=False)
        # On a stage that is not the last there are none, and the others' arrive below.
        sums = (
            torch.stack(outputs).sum(0)
            if outputs
            else torch.zeros(len(self._objective.metrics), device=self.layout.device)
        )
        for group in (self.layout.data_group, self.layout.pipeline_group):
            if group is not None:
                dist.all_reduce(sums, group=group)
        return sums, len(outputs)

    def _update_weights(self, learning_rate: float) -> float:
        return self._optimizer.step(learning_rate)

    def _load_adapters(self, state: Mapping[str, torch.Tensor], folder: Path) -> None:
        with torch.no_grad():
            for weight, value in self.trained.shards_of(state.__getitem__, folder):
                weight.copy_(value)

    def _optimizer_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        optimizer = self._optimizer
        yield "updates", torch.tensor(optimizer.updates)
        for kind in optimizer.kinds:
            for name, tensor in self.trained.tensors(partial(optimizer.state_of, kind=kind), torch.float32):
                yield f"{kind}.{name}", tensor

    def _load_optimizer_state(self, state: Mapping[str, torch.Tensor], folder: Path) -> None:
        self._optimizer.updates = int(state["updates"])
        for kind in self._optimizer.kinds:
            for weight, value in self.trained.shards_of(partial(_read, state, kind), folder):
                self._optimizer.load_state_of(weight, kind, value)


def _read(state: Mapping[str, torch.Tensor], kind: str, name: str) -> torch.Tensor:
    return state[f"{kind}.{name}"]
