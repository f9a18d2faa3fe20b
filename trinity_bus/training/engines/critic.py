"""The critic: a model of its own that says what reward may be expected from each token on.

It begins as the policy does, with a head of zeros in the place of the output layer. With the return ``R`` of a token
(the advantage before it was normalized, and the value then) and the weights of the policy's loss::

    loss = sum over tokens of weight * (V - R)^2 / 2
    loss = sum over tokens of weight * max((V - R)^2, (clip(V, V_then - c, V_then + c) - R)^2) / 2     c = value_clip

Sources: Schulman et al., arXiv:1707.06347, eq. 9; the clipped form, of the same authors' code, is described by Huang et
al., "The 37 Implementation Details of Proximal Policy Optimization", 2022.

It is transformers' model in float32 with torch's AdamW, whole on every rank, whatever the policy's layout is. Ranks
that train on different samples sum its gradients. Its state is in a checkpoint once, and read in any layout.

``finish_advantages`` makes the advantages of tokens from what passes over the samples have told: see
``TokenAdvantage``. Each rank finishes those of its own samples. What they are normalized by is of all ranks' samples.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from msgspec.structs import replace

from schemas.experience import Float32
from schemas.record import Metrics
from trinity_bus.config import TrainerSettings
from trinity_bus.training.engines.micro_batch import MicroBatchBudget
from trinity_bus.training.errors import CheckpointError
from trinity_bus.training.layout import Layout
from trinity_bus.training.objectives import Need
from trinity_bus.training.objectives.advantages import EQUAL, Float64, TokenAdvantage
from trinity_bus.training.objectives.objective import Objective
from trinity_bus.training.steps import packing
from trinity_bus.training.steps.packing import PackedArrays, TrainSample
from trinity_bus.training.steps.step_plan import Update

log = logging.getLogger(__name__)


class Critic:
    """What ``before_each`` micro-batch raises ends the pass."""

    def __init__(
        self,
        source: Path,
        settings: TrainerSettings,
        layout: Layout,
        *,
        budget: MicroBatchBudget,
        before_each: Callable[[], None],
    ) -> None:
        from transformers import AutoModel
        from transformers.utils import logging as of_transformers

        of_transformers.disable_progress_bar()  # a service's log is no terminal
        self._settings, self._layout, self._before_each = settings, layout, before_each
        self._budget = budget
        trunk = AutoModel.from_pretrained(
            source,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            attention_dropout=0.0,
        )
        head = torch.nn.Linear(trunk.config.hidden_size, 1)
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
        self._network: Any = torch.nn.ModuleDict({"trunk": trunk, "head": head}).to(layout.device)
        self._network.train()
        self._optimizer = torch.optim.AdamW(
            self._network.parameters(),
            lr=settings.critic_learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            weight_decay=0.0,
        )

    def values(self, samples: Sequence[TrainSample]) -> list[Float32]:
        with torch.no_grad():
            found = self._budget.within_memory(samples, lambda: packing.gathered(self._passes(samples, 0.0), samples))
        return [found[i] for i in range(len(samples))]

    def train(self, update: Update) -> Metrics:
        """Make one update with this rank's shard, unless loss or gradients are not finite."""
        # What examples say was not expected of the policy.
        drawn = [sample for sample in update.samples if sample.returns is not None]

        def run() -> torch.Tensor:
            self._optimizer.zero_grad(set_to_none=False)
            total = torch.zeros((), device=self._layout.device)
            for indices, arrays, values in self._passes(drawn, 1.0 / update.divisor):
                loss = self._loss([drawn[i] for i in indices], arrays, values)
                loss.backward()
                total += loss.detach()
            return total

        total = self._budget.within_memory(drawn, run)
        for parameter in self._network.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in self._network.parameters()]
        if (group := self._layout.data_group) is not None:
            flat = torch.cat([total[None], *(gradient.flatten() for gradient in gradients)])
            dist.all_reduce(flat, group=group)
            total, *summed = flat.split([1, *(gradient.numel() for gradient in gradients)])
            for gradient, whole in zip(gradients, summed, strict=True):
                gradient.copy_(whole.view_as(gradient))
        norm = torch.nn.utils.get_total_norm(gradients)
        loss, length = float(total), float(norm)
        if not (math.isfinite(loss) and math.isfinite(length)):
            if self._layout.rank == 0:
                log.warning("the critic's gradient norm is %g, its loss %g: its update is skipped", length, loss)
        elif length > 0:
            torch.nn.utils.clip_grads_with_norm_(self._network.parameters(), self._settings.max_grad_norm, norm)
            self._optimizer.step()
        return {"critic_loss": loss * update.divisor / update.weight, "critic_grad_norm": length}

    def state(self) -> dict[str, torch.Tensor]:
        parameters = dict(self._network.named_parameters())
        weights = {f"weight.{name}": parameter.detach() for name, parameter in parameters.items()}
        return weights | dict(state_of(self._optimizer, parameters))

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        parameters = dict(self._network.named_parameters())
        if missing := [name for name in parameters if f"weight.{name}" not in tensors]:
            raise CheckpointError(f"the checkpoint's critic has no {missing[0]}: it is of another model")
        load_state_of(self._optimizer, parameters, tensors, "critic state")

    def _passes(
        self, samples: Sequence[TrainSample], token_weight: float
    ) -> Iterator[tuple[list[int], PackedArrays, torch.Tensor]]:
        # Which samples, their arrays, the value of each position, [tokens]
        lengths = [len(sample.tokens) for sample in samples]
        for indices in packing.first_fit_decreasing(lengths, self._budget.tokens):
            self._before_each()
            arrays = packing.pack([samples[i] for i in indices], token_weight=token_weight)
            tokens, real = padded(arrays, self._layout.device)
            hidden = self._network["trunk"](input_ids=tokens, use_cache=False).last_hidden_state
            yield indices, arrays, self._network["head"](hidden[real])[:, 0]

    def _loss(self, samples: Sequence[TrainSample], arrays: PackedArrays, values: torch.Tensor) -> torch.Tensor:
        told = [(sample.returns, sample.values) for sample in samples]
        flat = (arrays.weight, *(packing.lay(column, arrays, samples) for column in zip(*told, strict=True)))
        weight, returns, then = (torch.from_numpy(array).to(self._layout.device) for array in flat)
        errors = (values - returns).square()
        if (bound := self._settings.value_clip) is not None:
            clipped = then + (values - then).clamp(-bound, bound)
            errors = torch.maximum(errors, (clipped - returns).square())
        loss: torch.Tensor = (errors * weight).sum() / 2
        return loss


def state_of(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in parameters.items():
        for kind, tensor in optimizer.state.get(parameter, {}).items():
            yield f"{kind}.{name}", tensor


def load_state_of(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Any], state: Mapping[str, torch.Tensor], what: str
) -> None:
    """Take over what :func:`state_of` gave, and weights beside it; CheckpointError where it is of another model."""
    optimizer.state.clear()
    for key, tensor in state.items():
        kind, _, name = key.partition(".")
        parameter = parameters.get(name)
        if parameter is None or (tensor.dim() and tensor.shape != parameter.shape):
            raise CheckpointError(f"{what} {key} {tuple(tensor.shape)} is of another model")
        if kind == "weight":
            parameter.detach().copy_(tensor)
        else:
            # Step counters stay on the CPU, where AdamW keeps them.
            optimizer.state[parameter][kind] = tensor.to(parameter.device) if tensor.dim() else tensor


def padded(arrays: PackedArrays, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sequences of a micro-batch as rows, and where in them its tokens are; both [sequences, longest].

    Padding comes after each sequence, where attention that is causal never looks.
    """
    real = torch.arange(arrays.longest) < torch.from_numpy(arrays.bounds).diff()[:, None]
    tokens = torch.zeros(real.shape, dtype=torch.long)
    tokens[real] = torch.from_numpy(arrays.tokens)
    return tokens.to(device), real.to(device)


_EPSILON: Final = 1e-8


def finish_advantages(
    samples: Sequence[TrainSample], advantage: TokenAdvantage, objective: Objective, layout: Layout
) -> tuple[list[TrainSample], Metrics]:
    """Return a rank's samples, with advantages in the place of rewards, and metrics of those of all ranks."""
    found: dict[int, Float64] = {}
    expected: dict[int, Float64] = {}
    for place, sample in enumerate(samples):
        if sample.drawn:  # what examples say has none
            rewards = (sample.advantages - _penalties(sample, objective))[sample.mask].astype(np.float64)
            values = np.zeros(len(rewards)) if sample.values is None else sample.values[sample.mask].astype(np.float64)
            found[place], expected[place] = advantage.finish(rewards, values), values
    mean, std, lowest, highest = _statistics(list(found.values()), layout)
    finished = [
        replace(
            sample,
            advantages=_placed((found[place] - mean) / (std + _EPSILON), sample),
            returns=None if sample.values is None else _placed(expected[place] + found[place], sample),
        )
        if sample.drawn
        else sample
        for place, sample in enumerate(samples)
    ]
    metrics = {"mean": mean, "std": std, "min": lowest, "max": highest}
    told = {f"advantage_{name}": value for name, value in metrics.items()}
    if Need.VALUES in advantage.needs:
        _, spread, _, _ = _statistics([expected[place] + found[place] for place in found], layout)
        told["critic_explained_variance"] = 1 - std**2 / spread**2 if spread > EQUAL else 0.0
    return finished, told


def _penalties(sample: TrainSample, objective: Objective) -> Float32:
    if sample.ref_logprobs is None:
        return np.zeros_like(sample.advantages)
    both = torch.from_numpy(sample.old_logprobs.copy()), torch.from_numpy(sample.ref_logprobs.copy())
    penalties: Float32 = objective.penalties(*both).numpy()
    return penalties


def _placed(values: Float64, sample: TrainSample) -> Float32:
    placed = np.zeros(len(sample.mask), np.float32)
    placed[sample.mask] = values
    return placed


def _statistics(parts: Sequence[Float64], layout: Layout) -> tuple[float, float, float, float]:
    # Mean, deviation, lowest and highest of the values of all ranks; zeros where nobody has any
    values = np.concatenate([np.empty(0), *parts])
    sums = torch.tensor([len(values), values.sum(), np.square(values).sum()], dtype=torch.float64, device=layout.device)
    ends = torch.tensor(
        [-values.min(initial=np.inf), values.max(initial=-np.inf)], dtype=torch.float64, device=layout.device
    )
    if (group := layout.data_group) is not None:
        dist.all_reduce(sums, group=group)
        dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=group)
    count, total, squares = sums.tolist()
    if count == 0:
        return 0.0, 0.0, 0.0, 0.0
    mean = total / count
    return mean, max(squares / count - mean * mean, 0.0) ** 0.5, -float(ends[0]), float(ends[1])
