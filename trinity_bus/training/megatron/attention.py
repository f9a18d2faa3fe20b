"""Core attention on ``torch.nn.functional.scaled_dot_product_attention``, for Megatron's local layer spec.

Megatron's own ``DotProductAttention`` refuses packed sequences, holds the scores of all pairs of positions in memory
and wants a CUDA generator for dropout. This one is causal and knows packed sequences only: ``thd``, [tokens, heads,
head dimension], one after another, with their bounds.

On a CPU, and on CUDA in float32, they are padded inside the attention only; all other layers work on the tokens alone.
In bfloat16, torch's variable-length flash attention takes them on CUDA as they are.

Where prompts are computed once, see ``packing.shared_prompts``, queries, keys and values are laid out for all sequences
here, and of what comes of it only what is computed is kept.

With context parallelism (which Megatron leaves to Transformer Engine) each rank has two parts of every sequence, as
``packing.context_part`` says. It gathers all keys and values, of which there are few where heads share them, and
attends for its own queries with a mask of positions.
"""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the field's name for it

from trinity_bus.training.megatron.core import MegatronModule, PackedSeqParams, mappings
from trinity_bus.training.megatron.rotary import PlacedSeqParams, rotate
from trinity_bus.training.steps import packing


class SDPAttention(MegatronModule):  # type: ignore[misc]  # Megatron has no types
    """The ``core_attention`` of a local layer spec. The signature is Megatron's."""

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
    packed: PackedSeqParams,
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
    packed: PackedSeqParams,
    *,
    scale: float | None,
    group: dist.ProcessGroup,
) -> torch.Tensor:
    # For this rank's parts of the sequences, [t / ranks, heads, d]
    bounds, longest, ranks = packed.cu_seqlens_q, int(packed.max_seqlen_q), group.size()
    parts = [packing.context_part(bounds.cpu().numpy(), rank, ranks) for rank in range(ranks)]
    order, mine = torch.from_numpy(np.concatenate(parts)), torch.from_numpy(parts[group.rank()])
    gathered = mappings.gather_from_sequence_parallel_region(torch.cat([key, value], 1), group=group)
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
