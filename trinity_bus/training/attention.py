"""Core attention on ``torch.nn.functional.scaled_dot_product_attention``, for Megatron's local layer spec.

Megatron's own ``DotProductAttention`` refuses packed sequences, holds the scores of all pairs of positions in memory
and wants a CUDA generator for dropout. This one is causal, does grouped queries, has no dropout, and knows two layouts:

* ``sbhd``: [sequence, batch, heads, head dimension];
* ``thd``: [tokens, heads, head dimension], sequences one after another, with their bounds in ``PackedSeqParams``.

On a CPU packed sequences are padded inside the attention only, since SDPA there knows no ragged batches; all other
layers work on the tokens alone. On CUDA torch's variable-length flash attention takes them as they are (bf16).
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it

from trinity_bus.training.megatron import MegatronModule, PackedSeqParams


class SDPAttention(MegatronModule):  # type: ignore[misc]  # Megatron has no types
    """The ``core_attention`` of a local layer spec. The signature is Megatron's."""

    def __init__(self, config: Any, layer_number: int, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__(config=config)
        self.layer_number = layer_number
        self.scale = softmax_scale

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *_: Any,
        packed_seq_params: PackedSeqParams | None = None,
        **__: Any,
    ) -> torch.Tensor:
        """Attends causally.

        Args:
            query: [s, b, heads, d] or, packed, [t, heads, d].
            key: As ``query``, with the key-value heads.
            value: As ``key``.
            attention_mask: Not used; causality is implied.
            packed_seq_params: Bounds of the sequences of a packed batch.

        Returns:
            [s, b, heads * d] or, packed, [t, heads * d].
        """
        del attention_mask
        grouped = query.shape[-2] != key.shape[-2]
        if packed_seq_params is None:
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=grouped)
            return out.permute(2, 0, 1, 3).reshape(*query.shape[:2], -1)
        if query.is_cuda:
            from torch.nn.attention.varlen import varlen_attn

            bounds, longest = packed_seq_params.cu_seqlens_q, packed_seq_params.max_seqlen_q
            packed = varlen_attn(
                query, key, value, bounds, bounds, longest, longest,
                scale=self.scale, window_size=(-1, 0), enable_gqa=grouped,
            )  # fmt: skip
            return packed.reshape(query.shape[0], -1)
        return _padded_inside(query, key, value, packed_seq_params, self.scale, grouped=grouped)


def _padded_inside(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packed: PackedSeqParams,
    scale: float | None,
    *,
    grouped: bool,
) -> torch.Tensor:
    """Spreads [t, heads, d] over [sequences, longest, heads, d], attends, and gathers the tokens again.

    Padding comes after each sequence, so a causal mask hides it from every real token.
    """
    bounds = packed.cu_seqlens_q
    sequences, longest = len(bounds) - 1, int(packed.max_seqlen_q)
    lengths = bounds.diff()
    token = torch.arange(query.shape[0])
    slot = token + (torch.arange(sequences) * longest - bounds[:-1]).repeat_interleave(lengths)

    def spread(x: torch.Tensor) -> torch.Tensor:
        padded = x.new_zeros(sequences * longest, *x.shape[1:]).index_copy(0, slot, x)
        return padded.view(sequences, longest, *x.shape[1:]).transpose(1, 2)

    out = F.scaled_dot_product_attention(
        spread(query), spread(key), spread(value), is_causal=True, scale=scale, enable_gqa=grouped
    )
    return out.transpose(1, 2).reshape(sequences * longest, -1).index_select(0, slot)
