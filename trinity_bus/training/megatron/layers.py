"""What Megatron's local layer spec is given in place of Megatron's own: rotary positions, attention, norms, experts."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch.nn.functional import grouped_mm

from trinity_bus.training.megatron import core
from trinity_bus.training.steps import packing


class Rotation(NamedTuple):
    # Both [tokens, 1, head dimension]

    cosines: torch.Tensor
    # With the sign that they have: negative in the first half
    sines: torch.Tensor


@dataclass(kw_only=True)
class SharedSeqParams(core.PackedSeqParams):  # type: ignore[misc]  # Megatron has no types
    # Both of ``packing.SharedPrompts``; None where each token is computed
    shared: tuple[torch.Tensor, torch.Tensor] | None = None


@dataclass(kw_only=True)
class PlacedSeqParams(SharedSeqParams):
    rotation: Rotation


class RotaryModel(core.GPTModel):  # type: ignore[misc]  # Megatron has no types
    """A model with rotary positions (Su et al., arXiv:2104.09864) that its attention applies; Megatron's options.

    Megatron takes sines and cosines at each layer anew and for queries and keys apart: with many short sequences a
    tenth of a small model's step. Here they are made once for a micro-batch, from the positions that the model is given
    anyway; they travel with the bounds of its sequences to where attention is computed.
    """

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
    """Return [tokens, heads, head dimension] turned, bit for bit as Megatron does; can be differentiated once.

    With ``x`` and ``y`` the two halves of a head, ``a`` the angles of a token and ``g``, ``h`` the gradients of the two
    halves of the result::

        x' = x cos a - y sin a        d x = g cos a + h sin a
        y' = y cos a + x sin a        d y = h cos a - g sin a
    """
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


class SDPAttention(core.MegatronModule):  # type: ignore[misc]  # Megatron has no types
    """The ``core_attention`` of a local layer spec, on torch's ``scaled_dot_product_attention``.

    The signature is Megatron's, whose own ``DotProductAttention`` refuses packed sequences, holds the scores of all
    pairs of positions in memory and wants a CUDA generator for dropout. This one is causal and knows packed sequences
    only: ``thd``, [tokens, heads, head dimension], one after another, with their bounds.

    On a CPU, and on CUDA in float32, they are padded inside the attention only; all other layers work on the tokens
    alone. In bfloat16, torch's variable-length flash attention takes them on CUDA as they are.

    Where prompts are computed once, see ``packing.shared_prompts``, queries, keys and values are laid out for all
    sequences here, and of what comes of it only what is computed is kept.

    With context parallelism (which Megatron leaves to Transformer Engine) each rank has two parts of every sequence, as
    ``packing.context_part`` says. It gathers all keys and values, of which there are few where heads share them, and
    attends for its own queries with a mask of positions.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        *_: Any,
        softmax_scale: float | None = None,
        pg_collection: Any = None,
        **__: Any,
    ) -> None:
        super().__init__(config=config)
        self.layer_number = layer_number
        self.scale = softmax_scale
        self.context_group = pg_collection.cp if config.context_parallel_size > 1 else None

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *_: Any,
        packed_seq_params: PlacedSeqParams,
        **__: Any,
    ) -> torch.Tensor:
        """Turn queries and keys, [t, heads, d], by their positions, and attend causally: [t, heads * d]."""
        del attention_mask
        grouped = query.shape[-2] != key.shape[-2]
        query, key = (rotate(x, packed_seq_params.rotation) for x in (query, key))
        dtype, shared = query.dtype, packed_seq_params.shared
        if shared is not None:
            query, key, value = (_laid_out(x, shared[1]) for x in (query, key, value))
        attended = self._attend(query, key, value, packed_seq_params, grouped=grouped)
        return attended if shared is None else attended.to(dtype).index_select(0, shared[0])

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        packed_seq_params: PlacedSeqParams,
        *,
        grouped: bool,
    ) -> torch.Tensor:
        if self.context_group is not None:
            return _of_parts(query, key, value, packed_seq_params, scale=self.scale, group=self.context_group)
        if query.is_cuda and query.dtype is not torch.float32:
            from torch.nn.attention.varlen import varlen_attn

            bounds, longest = packed_seq_params.cu_seqlens_q, packed_seq_params.max_seqlen_q
            packed = varlen_attn(
                query, key, value, bounds, bounds, longest, longest,
                scale=self.scale, window_size=(-1, 0), enable_gqa=grouped,
            )  # fmt: skip
            return packed.reshape(query.shape[0], -1)
        return _padded_inside(query, key, value, packed_seq_params, self.scale, grouped=grouped)


def _laid_out(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    # Gradients of what stands for several are summed, in float32 on a CPU, by what is the same in every run.
    rows = F.embedding(places, (x if x.is_cuda else x.float()).flatten(1))
    return rows.view(-1, *x.shape[1:])


def _padded_inside(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packed: core.PackedSeqParams,
    scale: float | None,
    *,
    grouped: bool,
) -> torch.Tensor:
    # Spreads [t, heads, d] over [sequences, longest, heads, d]. Padding comes after each sequence, so a causal mask
    # hides it from every real token. Where all are equally long there is none, and nothing to move.
    sequences, longest = len(packed.cu_seqlens_q) - 1, int(packed.max_seqlen_q)
    slots = _slots(packed.cu_seqlens_q, longest) if len(query) < sequences * longest else None
    # In bfloat16 its backward pass on a CPU takes three times as long as in float32.
    q, k, v = (_spread(x if x.is_cuda else x.float(), slots, sequences, longest) for x in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped).to(query.dtype)
    rows = out.transpose(1, 2).reshape(sequences * longest, -1)
    return rows if slots is None else rows.index_select(0, slots)


def _of_parts(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packed: core.PackedSeqParams,
    *,
    scale: float | None,
    group: dist.ProcessGroup,
) -> torch.Tensor:
    # For this rank's parts of the sequences, [t / ranks, heads, d]
    bounds, longest, ranks = packed.cu_seqlens_q, int(packed.max_seqlen_q), group.size()
    parts = [packing.context_part(bounds.cpu().numpy(), rank, ranks) for rank in range(ranks)]
    order, mine = torch.from_numpy(np.concatenate(parts)), torch.from_numpy(parts[group.rank()])
    gathered = core.mappings.gather_from_sequence_parallel_region(torch.cat([key, value], 1), group=group)
    whole = torch.empty_like(gathered).index_copy(0, order.to(query.device), gathered)
    sequences = len(bounds) - 1
    own_slots = _slots(bounds // ranks, longest // ranks)
    q = _spread(query, own_slots, sequences, longest // ranks)
    k, v = _spread(whole, _slots(bounds, longest), sequences, longest).chunk(2, 1)
    # What is padded here sees everything, so that no row of the mask is empty; nobody looks at it.
    positions = mine.new_full((sequences * (longest // ranks),), longest).to(query.device)
    starts = bounds[:-1].repeat_interleave(bounds.diff() // ranks)
    positions[own_slots] = mine.to(query.device) - starts
    mask = positions.view(sequences, 1, -1, 1) >= torch.arange(longest, device=query.device)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).reshape(len(positions), -1).index_select(0, own_slots)


def _slots(bounds: torch.Tensor, longest: int) -> torch.Tensor:
    shifts = torch.arange(len(bounds) - 1, device=bounds.device) * longest - bounds[:-1]
    return torch.arange(int(bounds[-1]), device=bounds.device) + shifts.repeat_interleave(bounds.diff())


def _spread(x: torch.Tensor, slots: torch.Tensor | None, sequences: int, longest: int) -> torch.Tensor:
    padded = x if slots is None else x.new_zeros(sequences * longest, *x.shape[1:]).index_copy_(0, slots, x)
    return padded.view(sequences, longest, *x.shape[1:]).transpose(1, 2)


class Norm(torch.nn.RMSNorm):  # type: ignore[misc]  # torch is not followed by mypy
    """torch's, with the signature that Megatron calls; Megatron's own wrapper refuses to be split by tokens."""

    def __init__(self, config: core.TransformerConfig, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        # Gradients of what sees a part of the tokens are summed over the ranks that see the others.
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda:
            return super().forward(x)
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Do what ``torch.nn.functional.rms_norm`` does (Zhang & Sennrich, arXiv:1910.07467); can be differentiated once.

    On a CPU torch differentiates it operation by operation, each a pass over memory and a tensor that is kept; CUDA has
    one kernel for it. With ``r = 1 / sqrt(mean(x^2) + eps)``, ``n = x r`` and the gradient ``g`` of ``y = n w``::

        d x = r (g w - n mean(g w n))        d w = sum over tokens of g n

    In float32 and float64 it is the same bit for bit. In bfloat16 and float16 each operation is rounded here, and
    results differ by up to three times the dtype's ``eps``, relatively.
    """
    result: torch.Tensor = _RMSNorm.apply(x, weight, epsilon)
    return result


class _RMSNorm(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed by mypy
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        inverse = x.square().mean(-1, keepdim=True).add_(epsilon).rsqrt_()
        normal = x * inverse
        ctx.save_for_backward(normal, inverse, weight)
        return normal * weight

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]  # torch is not followed by mypy
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        normal, inverse, weight = ctx.saved_tensors
        by_normal = gradient * normal
        means = by_normal.matmul(weight).div_(len(weight)).unsqueeze(-1)
        for_x = (gradient * weight).addcmul_(normal, means, value=-1).mul_(inverse)
        return for_x, by_normal.flatten(0, -2).sum(0), None


class Experts(core.MegatronModule):  # type: ignore[misc]  # Megatron is not type-checked
    """Those of one layer that one rank has, as two stacks; Megatron's layer makes it, and moves tokens to it and back.

    Megatron's own goes from expert to expert; its grouped ones want Transformer Engine, or a package that is for CUDA
    alone. torch's product of groups is one kernel where a GPU has it (bfloat16, from Hopper on), and elsewhere, on CPUs
    too, goes from group to group inside.
    """

    def __init__(self, count: int, config: core.TransformerConfig, pg_collection: Any) -> None:
        super().__init__(config=config)
        width = config.moe_ffn_hidden_size // pg_collection.expt_tp.size()
        device = "cpu" if config.use_cpu_initialization else "cuda"

        def stack(*size: int, split: int) -> torch.nn.Parameter:
            made = torch.nn.Parameter(torch.empty(count, *size, dtype=config.params_dtype, device=device))
            # Where experts are distributed, another rank's gradient is of other ones.
            made.allreduce = config.expert_model_parallel_size == 1
            core.set_tensor_model_parallel_attributes(made, is_parallel=True, dim=split, stride=1)
            return made

        self.linear_fc1 = stack(2 * width, config.hidden_size, split=1)
        self.linear_fc2 = stack(config.hidden_size, width, split=2)

    def forward(
        self, tokens: torch.Tensor, tokens_per_expert: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        """Return what the experts make of their tokens, [tokens, hidden], expert by expert, and no bias."""
        ends = tokens_per_expert.cumsum(0, dtype=torch.int32).to(tokens.device)
        inner = multiply(tokens, self.linear_fc1, ends)
        inner = core.weighted_bias_swiglu_impl(inner, None, weights.unsqueeze(-1))
        return multiply(inner, self.linear_fc2, ends), None


def multiply(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return ``rows @ weights[group].T``, group by group, of [rows, in] and [groups, out, in].

    ``ends``: [groups] int32, behind which row each group ends; on the rows' device. A group of no rows gets a gradient
    of zero from here, not from the kernel: on some GPUs it leaves there what was there before (pytorch/pytorch#172439),
    and no kernel is made for no rows at all.
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
