"""The experts of a layer on one rank as two stacks of weights, computed by products of groups: one kernel for all.

Megatron's own goes from expert to expert; its grouped ones want Transformer Engine, or a package that is for CUDA
alone. torch's product of groups is one kernel where a GPU has it (bfloat16, from Hopper on), and elsewhere, on CPUs
too, goes from group to group inside.

A group of no rows gets a gradient of zero from here, not from the kernel: on some GPUs it leaves there what was there
before (pytorch/pytorch#172439), and no kernel is made for no rows at all.
"""

from typing import Any

import torch
from torch.nn.functional import grouped_mm

from trinity_bus.training.megatron.core import (
    MegatronModule,
    TransformerConfig,
    set_tensor_model_parallel_attributes,
    weighted_bias_swiglu_impl,
)


class Experts(MegatronModule):  # type: ignore[misc]  # Megatron is not type-checked
    """Those of one layer that one rank has; Megatron's layer makes it, and moves tokens to it and back."""

    def __init__(self, count: int, config: TransformerConfig, pg_collection: Any) -> None:
        super().__init__(config=config)
        width = config.moe_ffn_hidden_size // pg_collection.expt_tp.size()
        device = "cpu" if config.use_cpu_initialization else "cuda"

        def stack(*size: int, split: int) -> torch.nn.Parameter:
            made = torch.nn.Parameter(torch.empty(count, *size, dtype=config.params_dtype, device=device))
            # Where experts are distributed, another rank's gradient is of other ones.
            made.allreduce = config.expert_model_parallel_size == 1
            set_tensor_model_parallel_attributes(made, is_parallel=True, dim=split, stride=1)
            return made

        self.linear_fc1 = stack(2 * width, config.hidden_size, split=1)
        self.linear_fc2 = stack(config.hidden_size, width, split=2)

    def forward(
        self, tokens: torch.Tensor, tokens_per_expert: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        """Return what the experts make of their tokens, [tokens, hidden], expert by expert, and no bias."""
        ends = tokens_per_expert.cumsum(0, dtype=torch.int32).to(tokens.device)
        inner = multiply(tokens, self.linear_fc1, ends)
        inner = weighted_bias_swiglu_impl(inner, None, weights.unsqueeze(-1))
        return multiply(inner, self.linear_fc2, ends), None


def multiply(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return ``rows @ weights[group].T``, group by group, of [rows, in] and [groups, out, in].

    ``ends``: [groups] int32, behind which row each group ends; on the rows' device.
    """
    product: torch.Tensor = _Product.apply(rows, weights, ends)
    return product


class _Product(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed by mypy
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, weights, ends)
        if not len(rows):
            return rows.new_empty(0, weights.shape[1])
        return grouped_mm(rows, weights.transpose(1, 2), offs=ends)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        rows, weights, ends = ctx.saved_tensors
        if not len(rows):
            return torch.empty_like(rows), torch.zeros_like(weights), None
        gradient = gradient.contiguous()
        of_weights = grouped_mm(gradient.T, rows, offs=ends)
        of_weights[ends.diff(prepend=ends.new_zeros(1)) == 0] = 0
        return grouped_mm(gradient, weights, offs=ends), of_weights, None
