"""Samples to train on, and the bounds of packed sequences, by hand."""

from typing import TYPE_CHECKING, Any

import numpy as np

from trinity_bus.training.steps.packing import TrainSample

if TYPE_CHECKING:
    import torch

    from trinity_bus.training.megatron.core import PackedSeqParams


def train_sample(tokens: Any, prompt_length: int, **fields: Any) -> TrainSample:
    """A sample of which everything is trained on, with zeros for what is not given; its tokens are any numbers."""
    zeros = np.zeros(len(tokens) - prompt_length, np.float32)
    values: dict[str, Any] = dict.fromkeys(("advantages", "rollout_logprobs", "old_logprobs"), zeros)
    values |= {"mask": np.ones(len(zeros), np.bool_), **fields}
    return TrainSample(tokens=np.array(tokens, np.int32), prompt_length=prompt_length, **values)


def packed_bounds(lengths: list[int]) -> "tuple[PackedSeqParams, torch.Tensor]":
    """Megatron's description of packed sequences, and the position of each of their tokens."""
    import torch

    from trinity_bus.training.megatron.core import PackedSeqParams

    bounds, longest = torch.tensor([0, *lengths]).cumsum(0).int(), max(lengths)
    limits = {"max_seqlen_q": longest, "max_seqlen_kv": longest}
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds, **limits)
    return packed, torch.cat([torch.arange(n) for n in lengths])
