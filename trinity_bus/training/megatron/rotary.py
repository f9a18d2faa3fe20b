"""Rotary positions (Su et al., arXiv:2104.09864) of packed sequences, for Megatron's local layer spec.

Megatron takes sines and cosines at each layer anew and for queries and keys apart: with many short sequences a tenth of
a small model's step. Here they are made once for a micro-batch, from the positions that the model is given anyway; they
travel with the bounds of its sequences to where attention is computed. With ``x`` and ``y`` the two halves of a head,
``a`` the angles of a token and ``g``, ``h`` the gradients of the two halves of the result::

    x' = x cos a - y sin a        d x = g cos a + h sin a
    y' = y cos a + x sin a        d y = h cos a - g sin a
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from trinity_bus.training.megatron.core import GPTModel, PackedSeqParams


class Rotation(NamedTuple):
    # Both [tokens, 1, head dimension]

    cosines: torch.Tensor
    # With the sign that they have: negative in the first half
    sines: torch.Tensor


@dataclass(kw_only=True)
class SharedSeqParams(PackedSeqParams):  # type: ignore[misc]  # Megatron has no types
    # Both of ``packing.SharedPrompts``; None where each token is computed
    shared: tuple[torch.Tensor, torch.Tensor] | None = None


@dataclass(kw_only=True)
class PlacedSeqParams(SharedSeqParams):
    rotation: Rotation


class RotaryModel(GPTModel):  # type: ignore[misc]  # Megatron has no types
    """A model with rotary positions that its attention applies. The options are Megatron's."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # The frequencies are there; that layers be given any and apply them is what Megatron asks this for.
        self.position_embedding_type = "none"

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        packed_seq_params: SharedSeqParams,
    ) -> torch.Tensor:
        """Return the last hidden states, or what the next stage is given, of [1, tokens]."""
        rotation = rotation_of(position_ids[0], self.rotary_pos_emb.inv_freq, self.config.params_dtype)
        placed = PlacedSeqParams(**vars(packed_seq_params), rotation=rotation)
        return super().forward(input_ids, position_ids, attention_mask, packed_seq_params=placed)


def rotation_of(positions: torch.Tensor, frequencies: torch.Tensor, dtype: torch.dtype) -> Rotation:
    """Return how tokens are turned, from positions [tokens] and frequencies [head dimension / 2]."""
    angles = torch.outer(positions.float(), frequencies)[:, None]
    cosines, sines = angles.cos().to(dtype), angles.sin().to(dtype)
    return Rotation(torch.cat([cosines, cosines], -1), torch.cat([-sines, sines], -1))


def rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Return [tokens, heads, head dimension] turned, bit for bit as Megatron does; can be differentiated once."""
    result: torch.Tensor = _Rotate.apply(x, *rotation)
    return result


class _Rotate(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed by mypy
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cosines, sines)
        return _swapped(x).mul_(sines).add_(x * cosines)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]  # torch is not followed by mypy
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cosines, sines = ctx.saved_tensors
        return (gradient * cosines).sub_(_swapped(gradient).mul_(sines)), None, None


def _swapped(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([second, first], -1)
